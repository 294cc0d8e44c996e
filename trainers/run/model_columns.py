"""Columns that only a model can compute for recorded steps: the entropy of their tokens, and the critic's value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import shape_rewards
from gymcp.trainers.credit.estimators import AdvantageTerm
from gymcp.trainers.credit.presets import MODEL_COLUMNS, Preset
from gymcp.trainers.credit.returns import gae
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.learner.critic import Critic
from gymcp.trainers.learner.learner import Learner
from gymcp.trainers.learner.token_rows import Row, rows_of
from gymcp.trainers.settings.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CriticTargets:
    """The data that a critic is fitted to after an iteration."""

    features: Tensor
    """[S, H]: the critic's inputs."""
    returns: Floats
    """[S]: the lambda-returns, which its values should have been."""
    explained: float
    """Share of the variance of the returns that its values explained; 0 if the returns do not vary."""


def add_model_columns(
    batch: StepBatch, preset: Preset, learner: Learner, critic: Critic | None, trackers: Trackers | None = None
) -> tuple[StepBatch, CriticTargets | None]:
    """The batch with the columns that the preset needs, and the targets of the critic if the preset needs one.

    The targets are returns of the shaped reward, such as the score less penalties; shapers get `trackers`.

    Raises ConfigError for a step without tokens.
    """
    if not preset.needs & MODEL_COLUMNS:
        return batch, None
    rows, groups, places = _rows(batch)
    if "entropy" in preset.needs:
        batch = batch.with_columns(entropy=_step_entropies(rows, groups, places, learner))
    if "value" not in preset.needs or critic is None:
        return batch, None
    by_row = learner.features(rows, groups)
    features = torch.empty_like(by_row)
    features[torch.as_tensor(places)] = by_row
    values = critic.values(features)
    batch = batch.with_columns(value=values)
    shaped, _ = shape_rewards(batch, preset, trackers or Trackers())
    return batch, _critic_targets(shaped, values, features, _gae_term(preset))


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


def _step_entropies(rows: Sequence[Row], groups: Sequence[int], places: Ints, learner: Learner) -> Floats:
    """[S]: the mean entropy (nats) over the tokens of each step."""
    column = np.zeros(len(places))
    of_tokens = learner.entropies(rows, groups)
    spans = [of[start:end] for row, of in zip(rows, of_tokens, strict=True) for _, start, end in row.steps]
    column[places] = [float(span.mean()) if len(span) else 0.0 for span in spans]
    return column


def _gae_term(preset: Preset) -> AdvantageTerm:
    return next(term for term in preset.advantage_terms if term.returns == "gae")


def _critic_targets(batch: StepBatch, values: Floats, features: Tensor, term: AdvantageTerm) -> CriticTargets:
    signal = np.nan_to_num(batch.column(term.signal))
    advantages = gae(signal, values, batch.starts, gamma=term.gamma, lam=term.lam)
    returns = advantages + values
    variance = float(returns.var())
    explained = 1 - float(advantages.var()) / variance if variance > 1e-12 else 0.0
    return CriticTargets(features=features, returns=returns, explained=explained)
