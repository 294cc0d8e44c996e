"""Filters, shapers and transforms of the base methods."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gymcp.trainers.credit.filters import TrajectoryMask
from gymcp.trainers.credit.shapers import Trackers, is_solved
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats, Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepSolved:
    """Filter that keeps the trajectories with the full score (expert iteration, filtered behaviour cloning)."""

    def __call__(self, batch: StepBatch) -> TrajectoryMask:
        return np.asarray(is_solved(batch), bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShiftBaseline:
    """The baseline raised by `shift`: a negative one gives every advantage as much more.

    Source: arXiv:2506.20520, delta V.
    """

    shift: float

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        return advantage - self.shift


@dataclass(frozen=True, slots=True, kw_only=True)
class SubtractSoftMean:
    """Less tau log mean exp(x / tau) over the trajectories of the group, then times `factor`: the subtrahend lies
    between their mean (large tau) and their largest value (small tau). A trajectory alone in its group gets 0.

    Source: Trinity-RFT, opmd_advantage.py, baseline "logavgexp".
    """

    tau: float = 1.0
    factor: float = 1.0

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        first, group = batch.starts[:-1], batch.keys["group"]
        of_episode, values = group[first], advantage[first] / self.tau
        largest = np.full(int(group.max()) + 1, -np.inf)
        np.maximum.at(largest, of_episode, values)  # the largest exponent is 0, so that none overflows
        count = np.bincount(of_episode)
        total = np.bincount(of_episode, np.exp(values - largest[of_episode]))
        soft_mean = self.tau * (largest + np.log(np.divide(total, count, out=np.ones_like(total), where=count > 0)))
        return np.asarray(self.factor * (advantage - soft_mean[group]), float)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailures:
    """Column ``ranked``: the score, and for the unsolved trajectories of a group `scale` times their rank by mean
    entropy of what they lack of a score of 1.

    Entropy is averaged over the tokens that the policy drew in the episode. The surest of n failures has rank
    (n - 1) / n, the least sure 0; equal entropies share their mean rank. A single failure has rank 0. So every
    failure stays below a success. Reads the column ``entropy``.

    Source: arXiv:2601.19620 (R3), which ranks failures by patterns of token entropy; its exact score was not read, so
    the mean stands for it.
    """

    scale: float = 0.1

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        first = batch.starts[:-1]
        group, failed = batch.keys["group"][first], ~is_solved(batch)
        tokens = batch.column("tokens")
        mean = batch.totals(batch.column("entropy") * tokens) / np.maximum(batch.totals(tokens), 1.0)
        ranked = batch.column("reward").copy()
        room = np.clip(1.0 - batch.totals(ranked)[failed], 0.0, 1.0)
        last = batch.starts[1:][failed] - 1
        ranked[last] += self.scale * room * _share_above(mean[failed], group[failed])
        return batch.with_columns(ranked=ranked), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class NoveltyBonus:
    """XRPO: a solved trajectory that was less likely than its group gets min(novelty (1 - eta), bound |A|) more.

    eta is exp(s - mean of s in the group), s the mean log-probability of the tokens that the policy drew in the
    episode; an eta above 1 gives nothing. Reads the column ``logprob``.

    Source: arXiv:2510.06672, through secondary sources.
    """

    novelty: float = 2.5
    bound: float = 0.5

    def __call__(self, batch: StepBatch, advantage: Floats) -> Floats:
        group, tokens = batch.keys["group"][batch.starts[:-1]], batch.column("tokens")
        likely = batch.totals(batch.column("logprob") * tokens) / np.maximum(batch.totals(tokens), 1.0)
        mean = np.bincount(group, likely) / np.maximum(np.bincount(group), 1)
        bonus = np.where(is_solved(batch), np.maximum(self.novelty * (1.0 - np.exp(likely - mean[group])), 0.0), 0.0)
        wanted = np.asarray(batch.per_step(bonus), float)
        return np.asarray(advantage + np.minimum(wanted, self.bound * np.abs(advantage)), float)


def _share_above(values: Floats, group: Ints) -> Floats:
    """[M] values, [M] groups -> [M]: share of the group's members with a larger value; an equal one counts half."""
    if not len(values):
        return np.zeros(0)
    order = np.lexsort((values, group))
    ordered, of_group = values[order], group[order]
    opens_group = np.diff(of_group, prepend=of_group[0] - 1) != 0
    members = np.cumsum(opens_group) - 1
    equals = np.cumsum(opens_group | (np.diff(ordered, prepend=ordered[0]) != 0)) - 1
    size, alike = np.bincount(members), np.bincount(equals)
    above = np.cumsum(size)[members] - np.cumsum(alike)[equals] + (alike[equals] - 1) / 2
    share = np.empty(len(values))
    share[order] = above / size[members]
    return share
