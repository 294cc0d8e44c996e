"""The signals of recorded steps that the model in training computes, and what its critic is fitted to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from gymcp.agents.prompts.rendering import Renderer
from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import combine_terms, shape_rewards
from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.preset import Preset
from gymcp.trainers.credit.returns import gae
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.signals.model_values import Value
from gymcp.trainers.credit.signals.options import KIND, OptionBackup, OptionValues, find_head_places
from gymcp.trainers.credit.signals.progress import Progress
from gymcp.trainers.credit.signals.registry import add_signals, find_model_signals
from gymcp.trainers.credit.signals.signal import Continuation, HeadPlaces
from gymcp.trainers.credit.signals.token_backup import TOKEN_VALUE
from gymcp.trainers.credit.signals.token_credit import Backup, count_tokens
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.forward import FeaturePlaces
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.token_rows import Row, rows_of
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Action, Tool

CRITIC_SIGNALS = (Value.name, TOKEN_VALUE, "option_low")
"""Columns that the critic predicts; a preset has one of them at most."""
NEEDS_CRITIC = frozenset({Value.name, TOKEN_VALUE, OptionValues.name})
"""Signals of which each needs a critic."""
FURTHER_HEADS: Mapping[str, str] = {
    Progress.name: Progress.name, "option_high": OptionValues.name, "option_end": OptionValues.name,
}  # fmt: skip
"""Name of a further head -> signal that needs it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriticTargets:
    """The data that a critic is fitted to after an iteration."""

    features: Tensor
    """[S, H]: the critic's inputs, of steps or of tokens."""
    returns: Floats
    """[S]: the lambda-returns, which its values should have been."""
    explained: float
    """Share of the variance of the returns that its values explained; 0 if the returns do not vary."""
    further: Mapping[str, HeadTargets] = field(default_factory=dict)
    """Targets of the other heads by name."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeadTargets:
    """The data that a further head is fitted to after an iteration."""

    features: Tensor
    """[P, H]: the head's inputs."""
    returns: Floats
    """[P]: what its values should have been; with `sums`, what their sums should have been."""
    sums: Ints | None = None
    """[P]: numbers from 0 of the sums that the values belong to."""


class LearnerSignals:
    """The learner, its critic and its renderer as the model of signals. Rows and features of a batch are kept."""

    def __init__(
        self,
        batch: StepBatch,
        learner: Learner,
        critic: Critic | None = None,
        renderer: Renderer | None = None,
        heads: Mapping[str, Critic] | None = None,
    ) -> None:
        """Raises ConfigError for a step without tokens."""
        self._learner, self._renderer = learner, renderer
        self._heads = {**(heads or {}), **({} if critic is None else dict.fromkeys(CRITIC_SIGNALS, critic))}
        self._rows, self._groups, self._places = _rows(batch)
        self._features: dict[FeaturePlaces, Tensor] = {}

    def logprobs(self, continuations: Sequence[Continuation]) -> list[Floats]:
        rows = [_continuation_row(each) for each in continuations]
        found = self._learner.logprobs(rows, [each.group for each in continuations])
        return [of_row[len(each.context) :] for of_row, each in zip(found, continuations, strict=True)]

    def drawn_logprobs(self, batch: StepBatch) -> list[Floats]:
        return self._by_step(self._learner.logprobs(self._rows, self._groups))

    def drawn_entropies(self, batch: StepBatch) -> list[Floats]:
        return self._by_step(self._learner.entropies(self._rows, self._groups))

    def entropies(self, batch: StepBatch) -> Floats:
        of_steps = self.drawn_entropies(batch)
        return np.array([float(of_tokens.mean()) if len(of_tokens) else 0.0 for of_tokens in of_steps])

    def values(self, batch: StepBatch) -> Floats:
        return self._find_head(Value.name).values(self.features("step"))

    def head_values(self, name: str, places: HeadPlaces) -> Floats:
        return self._find_head(name).values(self.features(places))

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        tokenizer = self._require_renderer().tokenizer
        return [str(tokenizer.decode([token], skip_special_tokens=False)) for token in ids]

    def features(self, places: FeaturePlaces) -> Tensor:
        """[P, H]: the last hidden states at these places, step after step."""
        if places not in self._features:
            by_row = self._learner.features(self._rows, self._groups, places)
            spans = [end - start for row in self._rows for _, start, end in row.steps]
            sizes = spans if places == "token" else [1] * len(spans)
            parts = torch.split(by_row, sizes)
            self._features[places] = torch.cat([parts[n] for n in np.argsort(self._places).tolist()])
        return self._features[places]

    def encode_answer(self, action: Action, tools: Sequence[Tool]) -> tuple[int, ...]:
        return tuple(self._require_renderer().encode_action(action, tools))

    def encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self._require_renderer().tokenizer.encode(text, add_special_tokens=False))

    @property
    def markup_ids(self) -> frozenset[int]:
        return frozenset(self._require_renderer().tokenizer.all_special_ids)

    def _find_head(self, name: str) -> Critic:
        if name not in self._heads:
            raise ConfigError(f"credit: the preset needs {name}, and there is no head that predicts it")
        return self._heads[name]

    def _require_renderer(self) -> Renderer:
        if self._renderer is None:
            raise ConfigError("credit: a signal of the preset encodes text, and no tokenizer is at hand")
        return self._renderer

    def _by_step(self, of_rows: Sequence[Floats]) -> list[Floats]:
        """[L] for each row -> [S]: the values of the tokens drawn in each step."""
        spans = [of[start:end] for row, of in zip(self._rows, of_rows, strict=True) for _, start, end in row.steps]
        found = [np.zeros(0)] * len(spans)
        for place, span in zip(self._places.tolist(), spans, strict=True):
            found[place] = span
        return found


def add_model_columns(
    batch: StepBatch,
    preset: Preset,
    learner: Learner,
    critic: Critic | None,
    trackers: Trackers | None = None,
    *,
    renderer: Renderer | None = None,
    heads: Mapping[str, Critic] | None = None,
) -> tuple[StepBatch, CriticTargets | None]:
    """The batch with the signals that the preset needs, and the targets of the critic if the preset needs one.

    The targets are returns of the shaped reward, such as the score less penalties; shapers get `trackers`.

    Raises ConfigError for a step without tokens, or a task without the gold that a signal reads.
    """
    if not find_model_signals(preset):
        return add_signals(batch, preset), None
    model = LearnerSignals(batch, learner, critic, renderer, heads)
    batch = add_signals(batch, preset, model)
    if critic is None:
        return batch, None
    shaped, _ = shape_rewards(batch, preset, trackers or Trackers())
    if TOKEN_VALUE in preset.needs:
        return batch, _token_targets(shaped, preset, model)
    if OptionValues.name in preset.needs:
        return batch, _option_targets(shaped, preset, model)
    if Value.name not in preset.needs:
        return batch, None
    targets = _critic_targets(shaped, batch.column(Value.name), model.features("step"), _gae_term(preset))
    return batch, replace(targets, further=_progress_targets(batch, model) if heads else {})


def _progress_targets(batch: StepBatch, model: LearnerSignals) -> dict[str, HeadTargets]:
    """The progress of an episode's steps adds up to its score."""
    scores, episodes = batch.totals(batch.column("reward")), batch.keys["trajectory"]
    return {Progress.name: HeadTargets(features=model.features("step end"), returns=scores, sums=episodes)}


def _find_backup(batch: StepBatch, preset: Preset) -> tuple[Backup, Floats]:
    """The backup of the first loss that has one, and [S]: the rewards that it gets."""
    term = next(term for term in preset.loss_terms if term.backup is not None)
    assert term.backup is not None
    return term.backup, combine_terms(term, batch)


def _option_targets(batch: StepBatch, preset: Preset, model: LearnerSignals) -> CriticTargets:
    """Targets of the three heads: the critic is the head for actions."""
    backup, rewards = _find_backup(batch, preset)
    assert isinstance(backup, OptionBackup)
    found, counts = backup.estimate(batch, rewards), count_tokens(batch)
    places = {name: torch.as_tensor(at) for name, at in find_head_places(batch.token_columns[KIND], counts).items()}
    features, begins = model.features("token"), ~np.isnan(found.high_returns)
    further = {
        "option_high": HeadTargets(
            features=features[places["option_high"]][torch.as_tensor(begins)], returns=found.high_returns[begins]
        ),
        "option_end": HeadTargets(features=features[places["option_end"]], returns=found.end_returns),
    }
    return CriticTargets(
        features=features[places["option_low"]],
        returns=found.low_returns,
        explained=_explained(found.low_returns, found.low),
        further=further,
    )


def _token_targets(batch: StepBatch, preset: Preset, model: LearnerSignals) -> CriticTargets:
    """Targets of the tokens' values."""
    backup, rewards = _find_backup(batch, preset)
    returns = backup(batch, rewards).returns
    left = returns - batch.token_columns[TOKEN_VALUE]
    return CriticTargets(features=model.features("token"), returns=returns, explained=_explained(returns, left))


def _explained(returns: Floats, left: Floats) -> float:
    """Share of the variance of returns that is not in what is left of them; 0 if the returns do not vary."""
    variance = float(returns.var())
    return 1 - float(left.var()) / variance if variance > 1e-12 else 0.0


def _continuation_row(asked: Continuation) -> Row:
    start, end = len(asked.context), len(asked.context) + len(asked.ids)
    return Row(
        token_ids=asked.context + asked.ids,
        loss_mask=(False,) * start + (True,) * len(asked.ids),
        logprobs=(0.0,) * end,
        versions=(),
        steps=((0, start, end),),
    )


def _rows(batch: StepBatch) -> tuple[list[Row], list[int], Ints]:
    """All rows of the batch, the group of each, and [S]: the index in the batch of their steps, row after row."""
    rows: list[Row] = []
    groups: list[int] = []
    places: list[int] = []
    for n, record in enumerate(batch.sources):
        start = int(batch.starts[n])
        for row in rows_of(record):
            rows.append(row)
            groups.append(int(batch.keys["group"][start]))
            places += [start + index for index, _, _ in row.steps]
    if len(places) != int(batch.starts[-1]):
        raise ConfigError("credit: a step of the batch has no tokens, so it has neither entropy nor value")
    return rows, groups, np.array(places, np.int64)


def _gae_term(preset: Preset) -> AdvantageTerm:
    return next(term for term in preset.advantage_terms if term.returns == "gae")


def _critic_targets(batch: StepBatch, values: Floats, features: Tensor, term: AdvantageTerm) -> CriticTargets:
    signal = np.nan_to_num(batch.column(term.signal))
    advantages = gae(signal, values, batch.starts, gamma=term.gamma, lam=term.lam)
    returns = advantages + values
    return CriticTargets(features=features, returns=returns, explained=_explained(returns, advantages))
