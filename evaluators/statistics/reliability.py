"""Reliability from repeated trials: the noise of a score, flaky tasks, and the number of trials that are needed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from gymcp.evaluators.statistics.intervals import Z95, Scores

POWER_Z = 0.8416212335729143
"""Normal quantile of a power of 80 %."""


def within_task_variance(scores: Scores) -> float | None:
    """Unbiased variance of a score between trials of one task, averaged over tasks; None if no task was repeated."""
    variances = [_variance(of_task) for of_task in scores.values() if len(of_task) > 1]
    return math.fsum(variances) / len(variances) if variances else None


def noise_floor(a: Scores, b: Scores | None = None) -> float | None:
    """Largest difference that two runs of the same policy on these tasks reach in 95 % of cases.

    Computed from the spread between trials of a task in `a` (and in `b`, if given): ``1.96 * sqrt(Var a + Var b)``,
    with ``Var = within-task variance * sum over tasks of 1/trials, / tasks^2``. Without `b`, `a` stands for both. None
    if no task was repeated, since chance was then not measured.
    """
    runs = [a, a if b is None else b]
    within = [variance for run in runs if (variance := within_task_variance(run)) is not None]
    if not within:
        return None
    spread = math.fsum(within) / len(within)
    variances = []
    for run in runs:
        counts = [len(of_task) for of_task in run.values() if of_task]
        if not counts:
            return None
        variances.append(spread * math.fsum(1 / count for count in counts) / len(counts) ** 2)
    return Z95 * math.sqrt(math.fsum(variances))


def flake_index(scores: Scores) -> dict[str, float]:
    """Unbiased chance that two trials of a task differ in success, for each task with at least two trials.

    ``2 c (n - c) / (n (n - 1))`` for c successes in n trials: 0 for a task that always or never succeeds.
    """
    chances = {}
    for task, of_task in scores.items():
        n, c = len(of_task), sum(score >= 1.0 for score in of_task)
        if n > 1:
            chances[task] = 2 * c * (n - c) / (n * (n - 1))
    return chances


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """Sample size that detects a difference of `resolution` between two runs at a level of 5 % with a power of 80 %."""

    resolution: float
    trials: int | None
    """Trials of each task, in each run; None if no number of trials is enough and more tasks are needed."""
    tasks: int
    """Tasks that are enough with the present number of trials."""
    detectable: float
    """Smallest difference that the present tasks and trials detect."""


def plan_trials(resolution: float, *, tasks: int, trials: float, within: float, between: float = 0.0) -> Power:
    """Number of trials or tasks that a desired resolution needs.

    A paired difference has the variance ``(between + 2 * within / trials) / tasks``: `within` is the variance of a
    score between trials of a task, `between` that of the true difference of the two runs between tasks (0: the same
    difference everywhere). `trials` is the present number for each task.
    """
    z2 = (Z95 + POWER_Z) ** 2
    allowed = tasks * resolution**2 / z2 - between
    needed = math.ceil(2 * within / allowed - 1e-9) if allowed > 0 else None
    variance = between + 2 * within / trials
    return Power(
        resolution=resolution,
        trials=None if needed is None else max(1, needed),
        tasks=max(1, math.ceil(variance * z2 / resolution**2 - 1e-9)),
        detectable=math.sqrt(variance * z2 / tasks),
    )


def _variance(values: Sequence[float]) -> float:
    mean = math.fsum(values) / len(values)
    return math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
