"""Columns that only a model can compute for recorded steps: the entropy of their tokens, a critic's value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.presets import Preset
from gymcp.trainers.credit.returns import gae
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.token_rows import rows_of
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.types import Row

SIGNALS = frozenset({"entropy", "value"})
"""Columns that `with_signals` makes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lesson:
    """What a critic learns from a batch."""

    features: Tensor
    """[S, H]"""
    returns: Floats
    """[S]: what its values should have been (the lambda-return)."""
    explained: float
    """Share of the returns' variance that its values explained; 0 where nothing varies."""


def with_signals(
    batch: StepBatch, preset: Preset, learner: Learner, critic: Critic | None
) -> tuple[StepBatch, Lesson | None]:
    """The batch with the columns that the preset needs. Raises ConfigError for a step without tokens."""
    if not preset.needs & SIGNALS:
        return batch, None
    rows, groups, places = _rows(batch)
    if "entropy" in preset.needs:
        batch = batch.with_columns(entropy=_entropies(rows, groups, places, learner))
    if "value" not in preset.needs or critic is None:
        return batch, None
    found = learner.features(rows, groups)
    features = torch.empty_like(found)
    features[torch.as_tensor(places)] = found
    values = critic.values(features)
    return batch.with_columns(value=values), _lesson(batch, values, features, _channel(preset))


def _rows(batch: StepBatch) -> tuple[list[Row], list[int], Ints]:
    """All rows of the batch, the group of each, and [S]: for their steps, row after row, the place in the batch."""
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


def _entropies(rows: Sequence[Row], groups: Sequence[int], places: Ints, learner: Learner) -> Floats:
    """[S]: the mean over the tokens of each step, in nats."""
    column = np.zeros(len(places))
    of_tokens = learner.entropies(rows, groups)
    spans = [of[start:end] for row, of in zip(rows, of_tokens, strict=True) for _, start, end in row.steps]
    column[places] = [float(span.mean()) if len(span) else 0.0 for span in spans]
    return column


def _channel(preset: Preset) -> AdvantageTerm:
    return next(term for term in preset.advantage_terms if term.returns == "gae")


def _lesson(batch: StepBatch, values: Floats, features: Tensor, channel: AdvantageTerm) -> Lesson:
    signal = np.nan_to_num(batch.column(channel.signal))
    ahead = gae(signal, values, batch.starts, gamma=channel.gamma, lam=channel.lam)
    returns = ahead + values
    spread = float(returns.var())
    return Lesson(
        features=features, returns=returns, explained=1 - float(ahead.var()) / spread if spread > 1e-12 else 0.0
    )
