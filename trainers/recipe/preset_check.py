"""Checks of a preset of the user before the first rollout: its columns, keys and loss, on two made-up episodes."""

from __future__ import annotations

from dataclasses import fields

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import shape_rewards
from gymcp.trainers.credit.preset import Preset
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.model_values import Value
from gymcp.trainers.credit.signals.options import OptionBackup, OptionValues
from gymcp.trainers.credit.signals.progress import Progress
from gymcp.trainers.credit.signals.registry import check_needs
from gymcp.trainers.credit.signals.token_backup import TokenValue
from gymcp.trainers.credit.step_batch import StepBatch, batch_of
from gymcp.trainers.settings.loss import Loss, find_ignored
from gymcp.types import Action, Observation, Sampled, Step, Trajectory


def check_trainable(who: str, preset: Preset) -> None:
    """Raise ConfigError, which begins with `who`, if the preset needs or reads what nothing makes, or if its loss has a
    setting that another one makes void.

    A preset whose shapers cannot work on made-up episodes is not checked: they may need gold, or components of a score.
    """
    if not preset.advantage_terms:
        raise ConfigError(f"{who}: has no advantage term, so nothing would be learnt")
    check_needs(who, preset)
    if "value" in preset.needs and all(term.returns != "gae" for term in preset.advantage_terms):
        raise ConfigError(f"{who}: needs value, whose critic is fitted to a term with returns='gae', and it has none")
    _check_heads(who, preset)
    plain = Loss()
    changed = [each.name for each in fields(Loss) if getattr(preset.loss, each.name) != getattr(plain, each.name)]
    if found := find_ignored(preset.loss, [name for name in changed if getattr(preset.loss, name) is not None]):
        raise ConfigError(f"{who}: its loss.{found[0]} would change nothing, because of {found[1]}")
    try:
        batch, _ = shape_rewards(_make_example(preset), preset, Trackers())
    except Exception:  # the shapers are the user's code, which may raise anything
        return
    for term in preset.advantage_terms:
        read = (term.signal, term.penalty, "value" if term.returns == "gae" else None)
        for column in filter(None, read):
            if column not in batch.columns:
                raise ConfigError(f"{who}: reads a column '{column}'; have {', '.join(sorted(batch.columns))}")
        for key in term.key:
            if key not in batch.keys:
                raise ConfigError(f"{who}: compares by a key '{key}'; have {', '.join(sorted(batch.keys))}")


def _check_heads(who: str, preset: Preset) -> None:
    """Raise ConfigError if a head that the preset needs would never be fitted."""
    backups = [term.backup for term in preset.loss_terms if term.backup is not None]
    if TokenValue.name in preset.needs and not backups:
        raise ConfigError(f"{who}: needs {TokenValue.name}, whose critic is fitted to a loss term with a backup")
    if OptionValues.name in preset.needs and not any(isinstance(backup, OptionBackup) for backup in backups):
        raise ConfigError(
            f"{who}: needs {OptionValues.name}, whose heads are fitted to a loss term with an OptionBackup"
        )
    if Progress.name in preset.needs and Value.name not in preset.needs:
        raise ConfigError(f"{who}: needs {Progress.name}, whose head is fitted beside a critic, so it needs value, too")


def _make_example(preset: Preset) -> StepBatch:
    """Two episodes of one task, with every column that the preset asks for."""
    step = Step(
        turn=0,
        observation=Observation(messages=(), tools=()),
        action=Action(text="done"),
        sampled=Sampled(prompt_ids=(1,), ids=(2,), logprobs=(-1.0,), versions=(("0", 0, 1),)),
        state_key="start",
    )
    records = [
        Trajectory(id=str(n), env="example", task="example", group="example", steps=(step,), score=float(n))
        for n in range(2)
    ]
    batch = batch_of(records)
    return batch.with_columns(**{name: batch.column("reward") for name in preset.needs})
