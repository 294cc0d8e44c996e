"""A Beta distribution of each task's chance of success, as the baseline of single episodes (SPO)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch

UNKNOWN = (0.5, 0.5)
"""Counts (a, b) of a task that has not been tried."""
LONGEST_MEMORY = 0.96
"""Factor by which counts are kept from episode to episode: about 1 / (1 - 0.96) = 25 episodes count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessBaseline:
    """Column ``surprise``: on the last step, the score less the chance of success that the task had before.

    The chance is a / (a + b). After an episode with score r, a becomes `memory` a + r and b `memory` b + 1 - r.
    Episodes of one task in a batch are all compared with the chance before the batch. The authors shorten the memory,
    down to 0.875, by how far the policy has moved on the task's last episode, which takes a forward pass over it; here
    it is constant.

    Source: verl-recipe, spo/spo_ray_trainer.py.
    """

    memory: float = LONGEST_MEMORY

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        scores = batch.totals(batch.column("reward"))
        column = np.zeros(int(batch.starts[-1]))
        chances = [success_chance(trackers.success_counts.get(task, UNKNOWN)) for task in batch.tasks]
        column[batch.starts[1:] - 1] = scores - np.array(chances)
        later = update_counts(trackers.success_counts, batch.tasks, scores.tolist(), self.memory)
        return batch.with_columns(surprise=column), replace(trackers, success_counts=later)


def success_chance(counts: Sequence[float]) -> float:
    """Mean of the Beta distribution with these counts (a, b)."""
    a, b = counts
    return a / (a + b)


def update_counts(
    counts: Mapping[str, Sequence[float]], tasks: Sequence[str], scores: Sequence[float], memory: float
) -> dict[str, Sequence[float]]:
    """The counts by task after episodes with these scores, each in [0, 1]."""
    after = dict(counts)
    for task, score in zip(tasks, scores, strict=True):
        a, b = after.get(task, UNKNOWN)
        after[task] = (memory * a + score, memory * b + 1.0 - score)
    return after
