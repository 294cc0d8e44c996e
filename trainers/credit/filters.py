"""Which trajectories of a batch are worth a gradient."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gymcp.trainers.credit.shapers import is_solved
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.settings.arrays import Floats

TrajectoryMask = npt.NDArray[np.bool_]
MIN_OF_EACH = 2
"""Solved trajectories of a group, and others, that `KeepCleanest` keeps where there are so many."""


def _groups(batch: StepBatch) -> npt.NDArray[np.int64]:
    return batch.keys["group"][batch.starts[:-1]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DropUninformative:
    """Drops groups of two or more whose rewards are all equal: they say nothing (dynamic sampling).

    Source: DAPO, arXiv:2503.14476.
    """

    def __call__(self, batch: StepBatch) -> TrajectoryMask:
        group, reward = _groups(batch), batch.totals(batch.column("reward"))
        least = np.full(int(group.max()) + 1, np.inf)
        most = np.full(len(least), -np.inf)
        np.minimum.at(least, group, reward)
        np.maximum.at(most, group, reward)
        return ((most > least) | (np.bincount(group) < 2))[group]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepCleanest:
    """GRPO-RoC: of each oversampled group `keep`, successes with the fewest tool errors first, failures as they come.

    Successes and failures keep their proportion, but at least `min_of_each` of each where there are so many; less than
    the full score is a failure. A trajectory without tool calls counts as half wrong. Groups in which all rewards are
    equal are dropped.

    Source: rStar2-Agent, rstar2_agent/down_sample/roc.py.
    """

    keep: int
    """At least twice `min_of_each`."""
    min_of_each: int = MIN_OF_EACH

    def __call__(self, batch: StepBatch) -> TrajectoryMask:
        group, reward = _groups(batch), batch.totals(batch.column("reward"))
        penalty, right = tool_penalty(batch), is_solved(batch)
        kept = np.zeros(len(group), bool)
        for each in np.unique(group).tolist():
            members = np.flatnonzero(group == each)
            if np.ptp(reward[members]) == 0:
                continue
            good, bad = members[right[members]], members[~right[members]]
            wanted_good, wanted_bad = self._shares(len(good), len(bad))
            kept[good[np.argsort(penalty[good], kind="stable")][:wanted_good]] = True
            kept[bad[:wanted_bad]] = True
        return kept

    def _shares(self, good: int, bad: int) -> tuple[int, int]:
        if good + bad <= self.keep:
            return good, bad
        share = round(good * self.keep / (good + bad))
        share = max(share, min(self.min_of_each, good))
        share = min(share, self.keep - min(self.min_of_each, bad), good)
        return share, min(self.keep - share, bad)


def tool_penalty(batch: StepBatch) -> Floats:
    """[N]: the share of tool calls that failed, a half where there were none, plus the share of unusable steps."""
    calls, errors = batch.totals(batch.column("calls")), batch.totals(batch.column("errors"))
    failed = np.divide(errors, calls, out=np.full_like(calls, 0.5), where=calls > 0)
    return failed + batch.totals(1.0 - batch.column("valid")) / batch.lengths
