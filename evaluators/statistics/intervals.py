"""Intervals and estimates, from scores alone. Every interval is 95 % and names the method that computed it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

Scores = Mapping[str, Sequence[float]]
"""Task -> the scores of its trials. A task without trials does not count."""

RESAMPLES = 10_000
Z95 = 1.959963984540054
"""Normal quantile of a 95 % interval."""

_CHUNK_DRAWS = 1_000_000  # draws in memory at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A 95 % confidence interval and its method."""

    low: float
    high: float
    method: str
    """Method that computed the interval, with all that is needed to compute it again."""


def wilson(successes: float, n: int) -> Interval | None:
    """95 % score interval of a proportion; None if n is 0. `successes` may be a sum of scores in [0, 1].

    Source: Wilson 1927, without continuity correction.
    """
    return None if n == 0 else _wilson(successes / n, n, Z95, f"Wilson, n={n}")


def _wilson(p: float, n: float, z: float, method: str) -> Interval:
    centre = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * math.sqrt(max(0.0, p * (1 - p)) / n + z**2 / (4 * n * n))
    # at 0 and 1 the bound is exact, but its floating-point value may fall a hair to the wrong side
    low = 0.0 if p <= 0 else max(0.0, centre - half)
    high = 1.0 if p >= 1 else min(1.0, centre + half)
    return Interval(low=low, high=high, method=method)


def wilson_by_task(scores: Scores) -> Interval | None:
    """95 % score interval of the mean over all episodes, from scores in [0, 1], with trials clustered by task.

    Wilson's interval with the effective number of episodes, ``episodes / design effect``, and with Student's quantile
    for tasks - 1 degrees of freedom in place of the normal one. The design effect is the variance of the mean if whole
    tasks are drawn, divided by that of as many independent zeros and ones; it is at least 1. If all tasks have the same
    mean, there is no spread to estimate it from, and each task counts as one episode.

    Source: Korn and Graubard 1998; Dean and Pagano 2015.
    """
    of_tasks = [of_task for of_task in scores.values() if of_task]
    if not of_tasks:
        return None
    tasks, episodes = len(of_tasks), sum(map(len, of_tasks))
    p = math.fsum(score for of_task in of_tasks for score in of_task) / episodes
    variance = _variance_by_task(of_tasks, p)
    if variance < 1e-12 or not 0 < p < 1:
        return wilson(p * tasks, tasks)
    effect = max(1.0, variance * episodes / (p * (1 - p)))
    method = f"Wilson by task, {tasks} tasks, {episodes} episodes, design effect {effect:.2f}"
    return _wilson(p, episodes / effect, t_quantile(tasks - 1), method)


def t_by_task(values: Scores) -> Interval | None:
    """Student's 95 % interval of the mean over all values, of any size, with trials clustered by task.

    None with fewer than two tasks, since the spread between tasks is then unknown.

    Source: linearised variance of a ratio, Cochran 1977.
    """
    of_tasks = [of_task for of_task in values.values() if of_task]
    tasks, episodes = len(of_tasks), sum(map(len, of_tasks))
    if tasks < 2:
        return None
    mean = math.fsum(value for of_task in of_tasks for value in of_task) / episodes
    half = t_quantile(tasks - 1) * math.sqrt(_variance_by_task(of_tasks, mean))
    return Interval(low=mean - half, high=mean + half, method=f"t by task, {tasks} tasks, {episodes} episodes")


def _variance_by_task(of_tasks: Sequence[Sequence[float]], mean: float) -> float:
    """Variance of the mean over all episodes if whole tasks are drawn; 0 with a single task."""
    tasks, episodes = len(of_tasks), sum(map(len, of_tasks))
    if tasks < 2:
        return 0.0
    apart = math.fsum((math.fsum(of_task) - mean * len(of_task)) ** 2 for of_task in of_tasks)
    return tasks / (tasks - 1) * apart / episodes**2


def t_quantile(freedom: int) -> float:
    """Student's quantile of a 95 % interval, to about 0.1 %; `freedom` is at least 1.

    Source: exact for 1 and 2 degrees of freedom, else the expansion of Abramowitz and Stegun 26.7.5.
    """
    if freedom == 1:
        return 12.706204736174698
    if freedom == 2:
        return 4.302652729749462
    z, v = Z95, freedom
    return z + sum(
        (
            (z**3 + z) / (4 * v),
            (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
            (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4),
        )
    )


def bootstrap_by_task(scores: Scores, *, seed: int = 0) -> Interval | None:
    """95 % interval of the mean over all episodes: percentiles of the means of whole tasks drawn with replacement.

    Trials of one task are alike, so they are drawn together. The percentiles lie a little further out than 2.5 and
    97.5, as Student's quantiles do, because plain resampling is too confident with few tasks. None without a score. The
    order of tasks and of their scores makes no difference.

    Source: Efron 1979; the wider percentiles are those of Hesterberg 2015, arXiv:1411.5279.
    """
    tasks = sorted(task for task, of_task in scores.items() if of_task)
    if not tasks:
        return None
    sums = np.array([math.fsum(scores[task]) for task in tasks])
    counts = np.array([len(scores[task]) for task in tasks])
    draw = np.random.default_rng(seed)
    means = np.empty(RESAMPLES)
    rows = max(1, _CHUNK_DRAWS // len(tasks))
    for start in range(0, RESAMPLES, rows):
        end = min(start + rows, RESAMPLES)
        drawn = draw.integers(len(tasks), size=(end - start, len(tasks)))
        means[start:end] = sums[drawn].sum(axis=1) / counts[drawn].sum(axis=1)
    low, high = np.quantile(means, _percentiles(len(tasks)))
    return Interval(
        low=float(low),
        high=float(high),
        method=f"bootstrap by task, {len(tasks)} tasks, {RESAMPLES} resamples, seed {seed}",
    )


def _percentiles(tasks: int) -> tuple[float, float]:
    if tasks < 2:
        return 0.0, 1.0
    far = t_quantile(tasks - 1) * math.sqrt(tasks / (tasks - 1))
    tail = 0.5 * math.erfc(far / math.sqrt(2))
    return tail, 1 - tail


def mean_ci95(scores: Scores, *, seed: int = 0) -> Interval | None:
    """95 % interval of the mean over all episodes, from the scores in [0, 1] of each task; None without a score.

    * One score per task, each 0 or 1: Wilson, whose assumptions then hold.
    * Several, each 0 or 1: Wilson by task.
    * Other scores: the bootstrap by task.
    * All tasks with the same mean (all solved, none solved, or a single task): there is no spread between them to
      estimate anything from, so Wilson again, with the number of tasks as n. That is wide enough, because no scores in
      [0, 1] vary more than zeros and ones of the same mean, and trials of one task may all be copies of each other.
    """
    of_tasks = [of_task for of_task in scores.values() if of_task]
    single = all(len(of_task) == 1 for of_task in of_tasks)
    whole = all(score in (0.0, 1.0) for of_task in of_tasks for score in of_task)
    if single and whole:
        return wilson(math.fsum(of_task[0] for of_task in of_tasks), len(of_tasks))
    means = [math.fsum(of_task) / len(of_task) for of_task in of_tasks]
    if max(means) - min(means) < 1e-12:
        return wilson(means[0] * len(means), len(means))
    return wilson_by_task(scores) if whole else bootstrap_by_task(scores, seed=seed)


def pass_at_k(n: int, successes: int, k: int) -> float:
    """pass@k: the chance that at least one of k episodes succeeds, unbiased from `successes` out of n >= k.

    Source: arXiv:2107.03374.
    """
    return 1.0 - math.comb(n - successes, k) / math.comb(n, k)


def pass_hat_k(n: int, successes: int, k: int) -> float:
    """pass^k: the chance that all of k episodes succeed, unbiased from `successes` out of n >= k.

    Source: arXiv:2406.12045.
    """
    return math.comb(successes, k) / math.comb(n, k)
