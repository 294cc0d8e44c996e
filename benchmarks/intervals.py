"""Simulation of the statistics: coverage of the 95 % intervals, false differences of equal runs, power of planned runs.

Runs are drawn at random: every task has a chance of success of its own, and every trial is drawn from it. Exit code 1
if the coverage of a setting is not between 94 and 96 %, or more than 5 % of equal runs are called different.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from report_table import Result, options, show

from gymcp.evaluators.compare import Contender, compare
from gymcp.evaluators.statistics import Interval, Scores, mean_ci95, plan_trials, t_by_task
from gymcp.store import EpisodeRow

Floats = npt.NDArray[np.float64]
Draw = np.random.Generator

RATES = (0.05, 0.95)
"""Bounds of a run's own success rate: at one exact rate, coverage would depend on the places of the steps of 1/n."""
KINDS = ("spread", "apart", "known or not")
TASKS = (50, 100, 400)
TRIALS = (1, 4)


def chances(draw: Draw, kind: str, rate: float, tasks: int) -> Floats:
    """[tasks]: the chance that each task is solved; their mean is `rate` on average."""
    if kind == "known or not":  # most are always or never solved, the others by chance
        sure = draw.random(tasks) < 0.6
        return np.where(sure, draw.random(tasks) < rate, rate)
    width = 2.0 if kind == "spread" else 0.5
    return draw.beta(rate * width, (1 - rate) * width, tasks)


def scores_of(trials: Floats) -> Scores:
    """[tasks, trials] -> scores by task."""
    return {str(n): of_task for n, of_task in enumerate(trials.tolist())}


def coverage(repeats: int, once: Callable[[Draw, float], tuple[Interval | None, float]]) -> float:
    """Share of `repeats` runs whose interval holds the truth."""
    draw = np.random.default_rng(0)
    hits = 0
    for _ in range(repeats):
        interval, truth = once(draw, draw.uniform(*RATES))
        hits += interval is not None and interval.low <= truth <= interval.high
    return hits / repeats


def of_success(kind: str, tasks: int, trials: int) -> Callable[[Draw, float], tuple[Interval | None, float]]:
    def once(draw: Draw, rate: float) -> tuple[Interval | None, float]:
        chance = chances(draw, kind, rate, tasks)
        return mean_ci95(scores_of(draw.binomial(1, chance[:, None], (tasks, trials)).astype(float))), rate

    return once


def of_partial_credit(tasks: int, trials: int) -> Callable[[Draw, float], tuple[Interval | None, float]]:
    """A draw of scores that are the share of four milestones passed."""

    def once(draw: Draw, rate: float) -> tuple[Interval | None, float]:
        chance = chances(draw, "spread", rate, tasks)
        return mean_ci95(scores_of(draw.binomial(4, chance[:, None], (tasks, trials)) / 4)), rate

    return once


def of_difference(tasks: int, trials: int) -> Callable[[Draw, float], tuple[Interval | None, float]]:
    """A draw of two runs; the second solves a tenth of what the first does not solve, and loses nothing."""

    def once(draw: Draw, rate: float) -> tuple[Interval | None, float]:
        first = chances(draw, "spread", rate, tasks)
        second = first + 0.1 * (1 - first)
        means = [draw.binomial(trials, chance) / trials for chance in (first, second)]
        gains = (means[1] - means[0]).tolist()
        return t_by_task({str(n): [gain] for n, gain in enumerate(gains)}), 0.1 * (1 - rate)

    return once


def contender(name: str, trials: Floats) -> Contender:
    rows = [
        EpisodeRow(id=f"{task}/{trial}", env="e", task=str(task), trial=trial, score=score)
        for task, of_task in enumerate(trials.tolist())
        for trial, score in enumerate(of_task)
    ]
    return Contender(name=name, config={}, rows=rows)


def share_ranked(repeats: int, gain: float, *, tasks: int, trials: int) -> float:
    """Share of pairs of runs that are ranked; the second of a pair is better by `gain` on every task."""
    draw = np.random.default_rng(0)
    ranked = 0
    for _ in range(repeats):
        chance = 0.2 + 0.5 * draw.random((tasks, 1))
        pair = [
            contender(name, draw.binomial(1, chance + more, (tasks, trials)).astype(float))
            for name, more in (("a", 0.0), ("b", gain))
        ]
        ranked += compare(pair).pairs[0].better is not None
    return ranked / repeats


def main() -> None:
    args = options(__doc__, "a fifth of the runs").parse_args()
    repeats = 2_000 if args.quick else 10_000
    # 0.2 + u/2 with u uniform: the mean of p (1 - p) is 0.2267
    planned = plan_trials(0.1, tasks=100, trials=1, within=0.2267).trials or 1
    results, wrong = [], []

    def note(metric: str, share: float, low: float, high: float, count: int) -> None:
        results.append(Result(metric=metric, value=100 * share, unit="%"))
        slack = 3 * math.sqrt(0.95 * 0.05 / count) if args.quick else 0.0
        if not low - slack <= share <= high + slack:
            wrong.append(metric)
        print(f"{metric}: {100 * share:.1f} %", file=sys.stderr, flush=True)

    for tasks in TASKS:
        for trials in TRIALS:
            where = f"{tasks} tasks x {trials}"
            for kind in KINDS:
                found = coverage(repeats, of_success(kind, tasks, trials))
                note(f"coverage, success, {where}, {kind}", found, 0.94, 0.96, repeats)
            found = coverage(repeats, of_difference(tasks, trials))
            note(f"coverage, difference of two runs, {where}", found, 0.94, 0.96, repeats)
    for tasks in TASKS[:2]:
        found = coverage(repeats // 10, of_partial_credit(tasks, 2))
        note(f"coverage, partial credit, {tasks} tasks x 2", found, 0.93, 0.97, repeats // 10)
    pairs = repeats // 20
    equal = share_ranked(pairs, 0.0, tasks=100, trials=2)
    note("equal runs called different, 100 tasks x 2", equal, 0.0, 0.05 + 2 * math.sqrt(0.05 * 0.95 / pairs), pairs)
    seen = share_ranked(pairs, 0.1, tasks=100, trials=planned)
    note(f"10 points seen, with the {planned} trials that were planned for 80 %", seen, 0.75, 0.87, pairs)
    show("intervals", results, as_json=args.json, title="95 % intervals, by simulation")
    if wrong:
        print(f"intervals: outside of what they should be: {'; '.join(wrong)}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
