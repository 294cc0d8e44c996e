"""Comparison of two groups of one run's episodes, such as retried ones and the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

SHUFFLES = 2_000
"""Shuffles of the groups that are drawn at random if tasks have several trials."""

_CHUNK_EPISODES = 1_000_000  # episodes in memory at a time

Floats = npt.NDArray[np.float64]
Labelled = Sequence[tuple[bool, float]]
"""Trials of one task: (True if the trial is in the second group, its value)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The second group of episodes compared with the first."""

    difference: float | None
    """Mean of the second group minus that of the first; None if one of them is empty."""
    p: float | None
    """Two-sided p-value of the difference; None if one of the groups is empty."""
    method: str
    """Method that computed `p`; empty if there is none."""


def compare_groups(episodes: Iterable[tuple[str, bool, float]], *, seed: int = 0) -> Groups:
    """Compare the two groups of the (task, True for the second group, success of 0 or 1) episodes.

    With one episode for each task: Fisher's exact test. Otherwise trials of one task are alike, so the groups are
    shuffled among whole tasks (`shuffle_groups`).
    """
    tasks: dict[str, list[tuple[bool, float]]] = {}
    for task, label, value in episodes:
        tasks.setdefault(task, []).append((label, value))
    flat = [each for task in sorted(tasks) for each in tasks[task]]
    first, second = ([value for label, value in flat if label is group] for group in (False, True))
    if not first or not second:
        return Groups(difference=None, p=None, method="")
    difference = math.fsum(second) / len(second) - math.fsum(first) / len(first)
    if len(tasks) == len(flat):
        p = fisher_exact(round(sum(second)), len(second), round(sum(first)), len(first))
        return Groups(difference=difference, p=p, method="Fisher's exact test")
    p = shuffle_groups([tasks[task] for task in sorted(tasks)], seed=seed)
    return Groups(difference=difference, p=p, method=f"groups shuffled among tasks, {SHUFFLES} times, seed {seed}")


def fisher_exact(a: int, of_a: int, b: int, of_b: int) -> float:
    """Two-sided p-value that `a` successes of `of_a`, and `b` of `of_b`, have one and the same chance.

    All tables with the same sums that are at most as likely as this one are added up. Source: Fisher 1935.
    """
    successes = a + b
    tables = range(max(0, successes - of_b), min(of_a, successes) + 1)
    ways = {k: math.comb(of_a, k) * math.comb(of_b, successes - k) for k in tables}
    return sum(count for count in ways.values() if count <= ways[a]) / sum(ways.values())


def shuffle_groups(tasks: Sequence[Labelled], *, seed: int = 0) -> float:
    """Two-sided p-value of the difference of two groups' means: how often it is as large after a shuffle.

    A shuffle hands each task the groups of another task with as many trials, in a random order. So trials of one task
    stay together, and a task that always succeeds does not count as several. The observed order is counted among the
    `SHUFFLES` drawn ones.

    Source: Phipson and Smyth 2010 for the count; Winkler et al. 2015 for shuffling blocks of equal size.
    """
    draw = np.random.default_rng(seed)
    blocks: dict[int, list[Labelled]] = {}
    for task in tasks:
        blocks.setdefault(len(task), []).append(task)
    values = [np.array([[value for _, value in task] for task in of_size]) for of_size in blocks.values()]
    labels = [np.array([[label for label, _ in task] for task in of_size], float) for of_size in blocks.values()]
    in_second = sum(each.sum() for each in labels)
    in_first = sum(each.size for each in labels) - in_second
    total = sum(each.sum() for each in values)

    def differ(second: Floats) -> Floats:
        """[N] sums of the second group's values -> [N] absolute differences of the means."""
        return np.asarray(np.abs(second / in_second - (total - second) / in_first), float)

    in_order = sum((each * label).sum() for each, label in zip(values, labels, strict=True))
    observed = float(differ(np.array([in_order]))[0]) - 1e-9
    extreme = 0
    rows = max(1, _CHUNK_EPISODES // sum(each.size for each in values))
    for start in range(0, SHUFFLES, rows):
        count = min(rows, SHUFFLES - start)
        second = np.zeros(count)
        for each, label in zip(values, labels, strict=True):
            order = draw.permuted(np.tile(np.arange(len(each)), (count, 1)), axis=1)
            shuffled = draw.permuted(label[order], axis=2)
            second += np.einsum("ctn,tn->c", shuffled, each)
        extreme += int(np.count_nonzero(differ(second) >= observed))
    return (extreme + 1) / (SHUFFLES + 1)
