"""Intervals and estimates, from scores alone. Every interval is 95 % and names the method it came from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000

_Z95 = 1.959963984540054
_CHUNK = 1_000_000  # draws held in memory at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    low: float
    high: float
    method: str
    """What computed it, with what a reader needs to compute it again."""


def wilson(successes: float, n: int) -> Interval | None:
    """The 95 % score interval of a proportion; None where n is 0. `successes` may be a sum of scores in [0, 1].

    Source: Wilson 1927, without continuity correction.
    """
    if n == 0:
        return None
    p, z2 = successes / n, _Z95**2
    centre = (p + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z95 / (1 + z2 / n) * math.sqrt(max(0.0, p * (1 - p)) / n + z2 / (4 * n * n))
    # at 0 and 1 the bound is exact, but its floating-point value may fall a hair to the wrong side
    low = 0.0 if p <= 0 else max(0.0, centre - half)
    high = 1.0 if p >= 1 else min(1.0, centre + half)
    return Interval(low=low, high=high, method=f"Wilson, n={n}")


def bootstrap_by_task(scores: Mapping[str, Sequence[float]], *, seed: int = 0) -> Interval | None:
    """The 95 % percentile interval of the mean over all episodes, whole tasks drawn with replacement.

    Episodes of one task are alike, so they are drawn together. None where there is no score. The order of tasks and of
    their scores makes no difference.
    """
    tasks = sorted(task for task, of_task in scores.items() if of_task)
    if not tasks:
        return None
    sums = np.array([math.fsum(scores[task]) for task in tasks])
    counts = np.array([len(scores[task]) for task in tasks])
    draw = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    rows = max(1, _CHUNK // len(tasks))
    for start in range(0, RESAMPLES, rows):
        end = min(start + rows, RESAMPLES)
        drawn = draw.integers(len(tasks), size=(end - start, len(tasks)))
        means[start:end] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, [0.025, 0.975])
    return Interval(
        low=float(low),
        high=float(high),
        method=f"bootstrap by task, {len(tasks)} tasks, {RESAMPLES} resamples, seed {seed}",
    )


def mean_ci95(scores: Mapping[str, Sequence[float]], *, seed: int = 0) -> Interval | None:
    """The 95 % interval of the mean over all episodes, from the scores in [0, 1] of each task; None without a score.

    * One score per task, each 0 or 1: Wilson, whose assumptions then hold.
    * Else: the bootstrap by task.
    * Where all tasks have one mean (all solved, none solved, or a single task) resampling them finds no spread and the
      bootstrap would claim certainty: Wilson again, with the tasks as n. That is wide enough, because no scores in
      [0, 1] vary more than zeros and ones of the same mean, and trials of one task may all be copies of each other.
    """
    of_tasks = [of_task for of_task in scores.values() if of_task]
    if all(len(of_task) == 1 and of_task[0] in (0.0, 1.0) for of_task in of_tasks):
        return wilson(sum(of_task[0] for of_task in of_tasks), len(of_tasks))
    means = [math.fsum(of_task) / len(of_task) for of_task in of_tasks]
    if max(means) - min(means) < 1e-12:
        return wilson(means[0] * len(means), len(means))
    return bootstrap_by_task(scores, seed=seed)


def paired_drop(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[float, Interval] | None:
    """Mean of before - after over the tasks that have both scores in [0, 1], and its 95 % interval; None for no task.

    The bootstrap by task. Where all differences are one number it finds no spread; then Wilson's, of as many ones of
    that size among the tasks.
    """
    drops = {task: [before[task] - after[task]] for task in before.keys() & after.keys()}
    if not drops:
        return None
    mean = math.fsum(drop for (drop,) in drops.values()) / len(drops)
    if len({drop for (drop,) in drops.values()}) == 1:
        size = wilson(abs(mean) * len(drops), len(drops))
        assert size is not None
        ends = sorted((math.copysign(size.low, mean), math.copysign(size.high, mean)))
        low, high = (-size.high, size.high) if mean == 0 else (ends[0], ends[1])
        return mean, Interval(low=low, high=high, method=f"{size.method}, of equal differences")
    found = bootstrap_by_task(drops)
    assert found is not None
    return mean, found


def pass_at_k(n: int, successes: int, k: int) -> float:
    """The chance that at least one of k episodes succeeds, unbiased from `successes` out of n >= k.

    Source: arXiv:2107.03374.
    """
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(n: int, successes: int, k: int) -> float:
    """pass^k: the chance that all of k episodes succeed, unbiased from `successes` out of n >= k.

    Source: arXiv:2406.12045.
    """
    return math.comb(successes, k) / math.comb(n, k)
