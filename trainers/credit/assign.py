"""From recorded trajectories to an advantage for every step."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.store import StepCredit
from gymcp.trainers.credit.estimators import estimate_advantage
from gymcp.trainers.credit.presets import GOLD, LossTerm, Preset
from gymcp.trainers.credit.returns import returns_to_go
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch, batch_of_columns
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TermCredit:
    """What one term of a preset gives to each step."""

    advantage: Floats
    """[S]: copied to every token that the policy drew in the step."""
    weight: float
    """Of its loss among those of the other terms."""
    counted: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    """[S]: the steps whose tokens its loss is averaged over."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Credit:
    """The verdict of a preset on a batch."""

    batch: StepBatch
    """What the filters left, with the columns that the shapers added."""
    terms: tuple[TermCredit, ...]
    trackers: Trackers
    """To be given to the next batch."""
    dropped: int
    """Trajectories that the filters took out."""

    @property
    def advantage(self) -> Floats:
        """[S]: the terms' weighted sum, for people; a loss takes each term by itself."""
        return np.asarray(sum(term.weight * term.advantage for term in self.terms), float)


def assign_credit(batch: StepBatch, preset: Preset, trackers: Trackers | None = None) -> Credit:
    """Pure: the same batch, preset and trackers give the same credit. Raises ConfigError for what the batch lacks."""
    missing = sorted(need for need in preset.needs if need != GOLD and need not in batch.columns)
    if missing:
        raise ConfigError(f"credit: the preset needs the column {', '.join(missing)}, which nothing has computed")
    known = trackers or Trackers()
    shaped = batch
    for shaper in preset.shapers:
        shaped, known = shaper(shaped, known)
    before = len(shaped.tasks)
    for keep in preset.filters:
        if len(shaped.tasks):
            shaped = shaped.keep(keep(shaped))
    terms = tuple(_credit_term(term, shaped) for term in preset.loss_terms)
    return Credit(batch=shaped, terms=terms, trackers=known, dropped=before - len(shaped.tasks))


def step_credits(credit: Credit, preset: Preset, *, name: str, options: Mapping[str, Json]) -> list[StepCredit]:
    """What the store keeps of a credit, for people: the signal of the preset's finest channel, its return, and the
    advantage, of each step of each trajectory that no keep took out."""
    batch, channel = credit.batch, preset.loss_terms[0].advantage_terms[-1]
    if not len(batch.tasks):
        return []
    rewards = np.nan_to_num(batch.column(channel.signal))
    gamma = channel.gamma if channel.returns in ("discounted", "gae") else 1.0
    columns = (rewards, returns_to_go(rewards, batch.starts, gamma), credit.advantage)
    split = [np.split(column, batch.starts[1:-1]) for column in columns]
    return [
        StepCredit(
            trajectory=record.id,
            preset=name,
            options=options,
            rewards=tuple(own_rewards.tolist()),
            returns=tuple(own_returns.tolist()),
            advantages=tuple(own_advantages.tolist()),
        )
        for record, own_rewards, own_returns, own_advantages in zip(batch.sources, *split, strict=True)
    ]


def advantages(
    preset: Preset,
    rewards: Sequence[Sequence[float]],
    groups: Sequence[Hashable],
    anchors: Sequence[Sequence[Hashable]] | None = None,
    **columns: Sequence[Sequence[float]],
) -> list[list[float]]:
    """[N, T_n] rewards, [N] groups, [N, T_n] anchors -> [N, T_n]: for trainers that have records of their own."""
    credit = assign_credit(batch_of_columns(rewards, groups, anchors, **columns), preset)
    return [row.tolist() for row in np.split(credit.advantage, credit.batch.starts[1:-1])]


def _credit_term(term: LossTerm, batch: StepBatch) -> TermCredit:
    if not len(batch.tasks):  # the filters have left nothing
        return TermCredit(advantage=np.zeros(0), weight=term.weight, counted=np.zeros(0, bool))
    advantage = np.zeros(int(batch.starts[-1]))
    for channel in term.advantage_terms:
        advantage = advantage + channel.weight * estimate_advantage(channel, batch)
    for transform in term.transforms:
        advantage = transform(batch, advantage)
    counted = np.ones(len(advantage), bool)
    if term.active_only:
        counted = np.asarray(batch.spread(batch.totals((advantage != 0).astype(float)) > 0), bool)
    return TermCredit(advantage=advantage, weight=term.weight, counted=counted)
