"""Filters: masks of the trajectories of a batch that are worth a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gymcp.trainers.credit.shapers import is_solved
from gymcp.trainers.credit.step_batch import StepBatch, has_score
from gymcp.trainers.settings.arrays import Floats

TrajectoryMask = npt.NDArray[np.bool_]
MIN_OF_EACH = 2
"""Smallest number of solved, and of unsolved, trajectories per group that `KeepCleanest` keeps if there are as many."""


def _groups(batch: StepBatch) -> npt.NDArray[np.int64]:
    return batch.keys["group"][batch.starts[:-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUninformative:
    """Filter that drops groups of two or more with equal rewards, which carry no signal (dynamic sampling).

    Of a tree, every scored episode counts, and none without a score, whose steps others share.

    Source: DAPO, arXiv:2503.14476.
    """

    def __call__(self, batch: StepBatch) -> TrajectoryMask:
        group, reward, ends = _groups(batch), batch.totals(batch.column("reward")), batch.inner_ends
        is_scored = np.array([has_score(record) for record in batch.sources] or np.ones(len(group)), bool)
        of_scored, scores = np.append(group[is_scored], ends.groups), np.append(reward[is_scored], ends.scores)
        lowest = np.full(int(group.max()) + 1, np.inf)
        highest = np.full(len(lowest), -np.inf)
        np.minimum.at(lowest, of_scored, scores)
        np.maximum.at(highest, of_scored, scores)
        return ((highest > lowest) | (np.bincount(of_scored, minlength=len(lowest)) < 2))[group]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCleanest:
    """Filter that keeps `keep` episodes of each oversampled group (GRPO-RoC).

    It keeps the successes with the fewest tool errors, and failures in the order of the batch. Both keep their
    proportion, but at least `min_of_each` of each are kept if there are as many; less than the full score is a failure.
    A trajectory without tool calls counts as half wrong. Groups whose rewards are all equal are dropped.

    Source: rStar2-Agent, rstar2_agent/down_sample/roc.py.
    """

    keep: int
    """Episodes per group; at least twice `min_of_each`."""
    min_of_each: int = MIN_OF_EACH

    def __call__(self, batch: StepBatch) -> TrajectoryMask:
        group, reward = _groups(batch), batch.totals(batch.column("reward"))
        penalty, success = tool_penalty(batch), is_solved(batch)
        mask = np.zeros(len(group), bool)
        for number in np.unique(group).tolist():
            members = np.flatnonzero(group == number)
            if np.ptp(reward[members]) == 0:
                continue
            good, bad = members[success[members]], members[~success[members]]
            good_count, bad_count = self._shares(len(good), len(bad))
            mask[good[np.argsort(penalty[good], kind="stable")][:good_count]] = True
            mask[bad[:bad_count]] = True
        return mask

    def _shares(self, good: int, bad: int) -> tuple[int, int]:
        if good + bad <= self.keep:
            return good, bad
        share = round(good * self.keep / (good + bad))
        share = max(share, min(self.min_of_each, good))
        share = min(share, self.keep - min(self.min_of_each, bad), good)
        return share, min(self.keep - share, bad)


def tool_penalty(batch: StepBatch) -> Floats:
    """[N]: share of tool calls that failed (a half if there were none) plus the share of unusable steps."""
    calls, errors = batch.totals(batch.column("calls")), batch.totals(batch.column("errors"))
    failed = np.divide(errors, calls, out=np.full_like(calls, 0.5), where=calls > 0)
    return failed + batch.totals(1.0 - batch.column("valid")) / batch.lengths
