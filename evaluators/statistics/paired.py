"""Paired comparison of two runs on the same tasks: the size of the difference, and how likely it is by chance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from gymcp.evaluators.statistics.intervals import Interval, Scores, t_by_task, wilson

FLIPS = 20_000
"""Sign flips drawn at random if there are too many to try them all."""
EXACT_UP_TO = 16
"""Largest number of differing tasks for which all sign flips are tried."""

_CHUNK_DRAWS = 4_000_000

K = TypeVar("K")


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """b compared with a on the tasks that both have scores of; every task has the same weight, whatever its number of
    trials."""

    tasks: int
    difference: float | None
    """Mean over tasks of b's mean score minus a's; None if no task is shared."""
    ci95: Interval | None
    """95 % interval of the difference, for tasks like these; None if nothing can be said, as with a single task."""
    better: int
    """Number of tasks on which b's mean is higher."""
    worse: int
    p_permutation: float | None
    """Two-sided p-value: how often a difference this large arises if the two runs are swapped at random, task by
    task."""
    p_mcnemar: float | None
    """Exact two-sided p-value; None unless both runs have one score for each task, each 0 or 1."""


def compare_paired(a: Scores, b: Scores, *, seed: int = 0) -> Paired:
    """b compared with a: task -> scores of its trials."""
    shared = sorted(task for task in a if a[task] and b.get(task))
    differences = [_mean(b[task]) - _mean(a[task]) for task in shared]
    # means of equal scores may differ in the last bit: that is no difference
    differences = [0.0 if abs(difference) < 1e-12 else difference for difference in differences]
    single = all(len(run[task]) == 1 and run[task][0] in (0.0, 1.0) for run in (a, b) for task in shared)
    bounded = all(0 <= score <= 1 for run in (a, b) for task in shared for score in run[task])
    better, worse = sum(each > 0 for each in differences), sum(each < 0 for each in differences)
    return Paired(
        tasks=len(shared),
        difference=_mean(differences) if shared else None,
        ci95=_interval(differences, bounded=bounded),
        better=better,
        worse=worse,
        p_permutation=sign_flip(differences, seed=seed) if shared else None,
        p_mcnemar=mcnemar(better, worse) if shared and single else None,
    )


def _interval(differences: Sequence[float], *, bounded: bool) -> Interval | None:
    """Student's interval; if all tasks differ alike there is no spread, which does not mean certainty.

    In that case, with scores in [0, 1], tasks that differ in another way (at most by -1 or 1) may be as frequent as
    Wilson's upper bound for an event that did not occur in as many tasks.
    """
    tasks = len(differences)
    if tasks < 2:
        return None
    if max(differences) - min(differences) > 1e-12:
        return t_by_task({str(n): [each] for n, each in enumerate(differences)})
    unseen = wilson(0, tasks)
    if not bounded or unseen is None:
        return None
    mean = differences[0]
    return Interval(
        low=mean - unseen.high * (1 + mean),
        high=mean + unseen.high * (1 - mean),
        method=f"Wilson, {tasks} tasks that differ alike",
    )


def sign_flip(differences: Sequence[float], *, seed: int = 0) -> float:
    """Two-sided p-value of the mean of paired differences, if each could equally well have had the other sign.

    All signs are tried for up to `EXACT_UP_TO` differences that are not 0; otherwise `FLIPS` are drawn at random, and
    the observed one is counted among them.

    Source: Fisher 1935; Phipson and Smyth 2010 for the drawn ones.
    """
    values = np.array([each for each in differences if each != 0.0])
    if not values.size:
        return 1.0
    observed = abs(values.sum()) - 1e-9 * np.abs(values).sum()
    if values.size <= EXACT_UP_TO:
        signs = 1.0 - 2.0 * ((np.arange(2**values.size)[:, None] >> np.arange(values.size)) & 1)
        return float(np.mean(np.abs(signs @ values) >= observed))
    draw = np.random.default_rng(seed)
    rows = max(1, _CHUNK_DRAWS // values.size)
    extreme = 0
    for start in range(0, FLIPS, rows):
        signs = draw.integers(2, size=(min(rows, FLIPS - start), values.size), dtype=np.int8) * 2.0 - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ values) >= observed))
    return (extreme + 1) / (FLIPS + 1)


def mcnemar(better: int, worse: int) -> float:
    """Exact two-sided p-value of McNemar's test that as many tasks got better as got worse.

    Source: McNemar 1947, with the binomial distribution.
    """
    changed = better + worse
    if not changed:
        return 1.0
    tail = sum(math.comb(changed, k) for k in range(min(better, worse) + 1))
    return float(min(1.0, 2 * tail / 2**changed))


def holm(p_values: Mapping[K, float]) -> dict[K, float]:
    """P-values corrected for their number: one of them is below 0.05 by chance in at most 5 % of cases.

    Source: Holm 1979.
    """
    corrected: dict[K, float] = {}
    least = 0.0
    for rank, (name, p) in enumerate(sorted(p_values.items(), key=lambda item: item[1])):
        least = max(least, min(1.0, (len(p_values) - rank) * p))
        corrected[name] = least
    return {name: corrected[name] for name in p_values}


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
