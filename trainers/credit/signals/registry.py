"""The registry of signals, and the columns that a preset asks of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from gymcp.errors import ConfigError
from gymcp.trainers.credit.preset import GOLD, Preset
from gymcp.trainers.credit.signals.critique import Critique, check_gold_calls
from gymcp.trainers.credit.signals.gold_logprob import GoldLogprob, check_gold_answers
from gymcp.trainers.credit.signals.model_values import Entropy, Logprob, TokenEntropy, Value
from gymcp.trainers.credit.signals.observation_gain import ObservationGain
from gymcp.trainers.credit.signals.options import OptionValues
from gymcp.trainers.credit.signals.progress import Progress
from gymcp.trainers.credit.signals.signal import Signal, SignalModel
from gymcp.trainers.credit.signals.token_backup import TokenValue
from gymcp.trainers.credit.signals.token_credit import count_drawn
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.types import Task

SIGNALS: Mapping[str, Signal] = {
    signal.name: signal
    for signal in (
        Entropy(),
        TokenEntropy(),
        Logprob(),
        Value(),
        GoldLogprob(),
        ObservationGain(),
        Critique(),
        TokenValue(),
        Progress(),
        OptionValues(),
    )
}  # fmt: skip
"""Signals by name, with their default settings."""


def list_signals(preset: Preset) -> tuple[Signal, ...]:
    """The signals that the preset needs, with the settings that it gives them."""
    own = {signal.name for signal in preset.signals}
    named = sorted(name for name in preset.needs if name in SIGNALS and name not in own)
    return (*preset.signals, *(SIGNALS[name] for name in named))


def needs_gold(preset: Preset) -> bool:
    """True if the preset, or one of its signals, compares with the gold of the tasks."""
    return GOLD in preset.needs or any("gold" in signal.needs for signal in list_signals(preset))


def find_model_signals(preset: Preset) -> tuple[Signal, ...]:
    """The signals of the preset that only the model in training can compute."""
    return tuple(signal for signal in list_signals(preset) if "model" in signal.needs)


def add_signals(batch: StepBatch, preset: Preset, model: SignalModel | None = None) -> StepBatch:
    """The batch with the columns of the preset's signals; a column that is there already stays as it is.

    Without a `model`, signals that need one are left out. Raises ConfigError for a step or a task that lacks what a
    signal reads.
    """
    for signal in list_signals(preset):
        if signal.name in batch.columns or ("model" in signal.needs and model is None):
            continue
        columns = signal.compute(batch, model)
        batch = batch.with_columns(**columns.steps)
        if columns.tokens:
            batch = batch.with_tokens(count_drawn(batch), **columns.tokens)
    return batch


GOLD_CHECKS: Mapping[str, Callable[[Task], None]] = {
    GoldLogprob.name: check_gold_answers,
    Critique.name: check_gold_calls,
}
"""Signal -> check that a task has the gold that it compares with, which raises ConfigError."""


def check_gold(preset: Preset, task: Task) -> None:
    """Raise ConfigError if a task lacks the gold that a signal of the preset compares with."""
    for signal in list_signals(preset):
        if signal.name in GOLD_CHECKS:
            GOLD_CHECKS[signal.name](task)


def count_passes(preset: Preset, batch: StepBatch) -> float:
    """Forward passes that the preset's signals take for the batch, by their declared costs."""
    steps, episodes = int(batch.starts[-1]), len(batch.tasks)
    return sum(signal.cost.count(steps=steps, episodes=episodes) for signal in list_signals(preset))


def check_needs(who: str, preset: Preset) -> None:
    """Raise ConfigError, which begins with `who`, if the preset needs what is no signal."""
    own = {signal.name for signal in preset.signals}
    if unknown := sorted(preset.needs - SIGNALS.keys() - own - {GOLD}):
        known = ", ".join(sorted({*SIGNALS, GOLD}))
        raise ConfigError(f"{who}: needs {', '.join(unknown)}, and training can give {known} only")
