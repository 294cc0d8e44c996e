"""Comparison of training runs: held-out success, paired by task, after the last iteration that both were tested at."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.evaluators.compare import RESOLUTION, SIGNIFICANCE_LEVEL
from gymcp.evaluators.metrics import Bounds, bound_held_out, coverage_floor, rate_held_out, refuse_held_out
from gymcp.evaluators.statistics import (
    Interval,
    Paired,
    Power,
    Scores,
    compare_paired,
    holm,
    mean_ci95,
    plan_trials,
)
from gymcp.evaluators.training_conditions import (
    TrainingConditions,
    check_same_tasks,
    describe_conditions,
    read_conditions,
)
from gymcp.evaluators.training_curves import count_tasks
from gymcp.store.heldout import HELDOUT_FILE, HeldoutResult, read_heldout
from gymcp.store.metric_rows import read_metric_rows
from gymcp.store.run_folder import TRAINING_FILE
from gymcp.types import Json

COLUMNS = (
    "success", "reward", "steps", "calls", "cost/money", "cost/asking", "cost/seconds", "cost/bytes", "cost/risk",
    "unusable", "entropy", "kl", "kl_reference", "loss", "grad_norm", "clipped", "advantage/size", "advantage/active",
    "dropped", "tokens", "updates", "learning_rate", "seconds",
)  # fmt: skip
"""Columns of the metrics that are set side by side; those that no run has are left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingContender:
    """A training run to be compared."""

    name: str
    conditions: TrainingConditions
    results: Sequence[HeldoutResult]
    rows: Sequence[Mapping[str, Json]]
    """Rows of metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitStanding:
    """Held-out success of one run on one split."""

    name: str
    split: str
    tasks: int
    """Tasks with a score."""
    success: float | None
    ci95: Interval | None
    coverage: str
    """Coverage in words: "60/64 scored"; empty if the number of tasks was not recorded."""
    bounds: Bounds | None
    """Success over all tasks if too few have a score for a figure: the run is listed, but not ranked; else None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPair:
    """Two runs on the tasks of one split that both have a score of."""

    a: str
    b: str
    split: str
    paired: Paired
    """Statistics of b against a."""
    p_holm: float | None
    """P-value of the permutation test, corrected for all pairs and splits; None if no task is shared."""
    better: str | None
    """Name of the better run; None if chance alone may explain the difference."""
    power: Power | None
    """Tasks needed for the resolution; None if no two tasks differ in their difference."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingComparison:
    iteration: int
    """Last iteration after which all runs were tested."""
    standings: tuple[SplitStanding, ...]
    pairs: tuple[SplitPair, ...]
    columns: Mapping[str, tuple[float | None, ...]]
    """Column of the metrics -> its value of each run in that iteration, or in the last one before that has it."""
    caveats: tuple[str, ...]
    """Sentences on what else than the policies may explain a difference."""
    problems: tuple[str, ...]
    """Runs that are not ranked on a split, each with the reason."""


def is_training_run(folder: Path) -> bool:
    """True if the folder holds a training run."""
    return (folder / TRAINING_FILE).is_file()


def read_training_run(folder: Path, name: str) -> TrainingContender:
    """The run in `folder`. Raises ConfigError if its record cannot be read, or has no held-out success by task."""
    conditions = read_conditions(folder)
    results = read_heldout(folder)
    if not results:
        raise ConfigError(
            f"training run {folder}: has no {HELDOUT_FILE}, the held-out success by task, which earlier versions of"
            " gymcp did not write; let each final policy play the same tasks and compare these runs: gymcp eval ENV"
            f" --agent react --policy local:{folder / 'final'}"
        )
    return TrainingContender(name=name, conditions=conditions, results=results, rows=read_metric_rows(folder))


def compare_training(
    contenders: Sequence[TrainingContender], *, resolution: float = RESOLUTION, min_coverage: float | None = None
) -> TrainingComparison:
    """The runs after the last iteration that all were tested at, pair by pair and split by split.

    A run is not ranked on a split if a smaller share of its tasks than `min_coverage` is scored (None: the floor of the
    run's config, else the default one).

    Raises ConfigError for runs of different tasks, or without a test that they have in common.
    """
    conditions = {each.name: each.conditions for each in contenders}
    check_same_tasks(conditions)
    iteration, splits = _find_last_common(contenders)
    scores = {
        (each.name, split): {task: [float(won)] for task, won in _success(each, iteration, split).items()}
        for each in contenders
        for split in splits
    }
    places = [(each, split) for each in contenders for split in splits]
    refused = {
        (each.name, split): f"{each.name}, {split}: {why}"
        for each, split in places
        if (why := _refuse(each, iteration, split, min_coverage))
    }
    compared = {
        (a.name, b.name, split): compare_paired(scores[a.name, split], scores[b.name, split])
        for split in splits
        for a, b in combinations(contenders, 2)
        if not refused.keys() & {(a.name, split), (b.name, split)}
    }
    corrected = holm({key: each.p_permutation for key, each in compared.items() if each.p_permutation is not None})
    return TrainingComparison(
        iteration=iteration,
        standings=tuple(
            _stand(each, iteration, split, scores[each.name, split], min_coverage) for each, split in places
        ),
        pairs=tuple(
            _judge(key, each, corrected.get(key), (scores[key[0], key[2]], scores[key[1], key[2]]), resolution)
            for key, each in compared.items()
        ),
        columns=_columns(contenders, iteration),
        caveats=tuple(describe_conditions(conditions)),
        problems=tuple(refused.values()),
    )


def _refuse(contender: TrainingContender, iteration: int, split: str, min_coverage: float | None) -> str:
    """Reason why the run has no figure and no rank on the split; empty if it has them."""
    floor = coverage_floor(contender.conditions.config, min_coverage)
    return refuse_held_out(count_tasks(_rows_of(contender, iteration), split), floor, contender.name)


def _stand(
    contender: TrainingContender, iteration: int, split: str, scores: Scores, min_coverage: float | None
) -> SplitStanding:
    won = [value for values in scores.values() for value in values]
    counts = count_tasks(_rows_of(contender, iteration), split)
    rate = rate_held_out(counts)
    return SplitStanding(
        name=contender.name,
        split=split,
        tasks=len(won),
        success=sum(won) / len(won) if won else None,
        ci95=mean_ci95(scores),
        coverage="" if rate is None else rate.coverage,
        bounds=bound_held_out(counts, coverage_floor(contender.conditions.config, min_coverage)),
    )


def _plan(a: Scores, b: Scores, resolution: float) -> Power | None:
    """Tasks that the resolution needs. Each task is played once, so its trials and its difference have one variance."""
    differences = [b[task][0] - a[task][0] for task in a if task in b]
    if len(set(differences)) < 2:
        return None
    spread = statistics.variance(differences)
    return plan_trials(resolution, tasks=len(differences), trials=1, within=0.0, between=spread)


def _rows_of(contender: TrainingContender, iteration: int) -> list[Mapping[str, Json]]:
    return [row for row in contender.rows if row["iteration"] == iteration]


def _find_last_common(contenders: Sequence[TrainingContender]) -> tuple[int, list[str]]:
    """The last iteration after which all runs were tested on a common split, and these splits."""
    tested = [{(result.iteration, result.split) for result in each.results} for each in contenders]
    common = set.intersection(*tested)
    if not common:
        said = "; ".join(
            f"{each.name}: after {', '.join(map(str, sorted({number for number, _ in own})))} on"
            f" {', '.join(sorted({split for _, split in own}))}"
            for each, own in zip(contenders, tested, strict=True)
        )
        raise ConfigError(
            f"compare: the runs have no test in common ({said}); give their recipes the same evaluation.every and"
            " evaluation.splits"
        )
    last = max(number for number, _ in common)
    return last, sorted(split for number, split in common if number == last)


def _success(contender: TrainingContender, iteration: int, split: str) -> Mapping[str, bool]:
    results = [each for each in contender.results if (each.iteration, each.split) == (iteration, split)]
    return results[-1].success


def _judge(
    key: tuple[str, str, str], paired: Paired, p: float | None, scores: tuple[Scores, Scores], resolution: float
) -> SplitPair:
    a, b, split = key
    better = None
    if p is not None and p < SIGNIFICANCE_LEVEL and paired.difference:
        better = b if paired.difference > 0 else a
    is_part = paired.tasks < max(map(len, scores))
    tasks = f"the {paired.tasks} tasks that both have a score for" if is_part else f"{paired.tasks} tasks"
    return SplitPair(
        a=a,
        b=b,
        split=split,
        paired=paired,
        p_holm=p,
        better=better,
        power=_plan(*scores, resolution),
        words=_describe(key, paired, p, better, tasks),
    )


def _describe(key: tuple[str, str, str], paired: Paired, p: float | None, better: str | None, tasks: str) -> str:
    a, b, split = key
    if paired.difference is None or p is None:
        return f"{split}: {a} and {b} have a score of no task in common."
    points = f"{100 * abs(paired.difference):.1f} points"
    interval = ""
    if paired.ci95 is not None:
        sign = 1 if better != a else -1
        low, high = sorted((sign * 100 * paired.ci95.low, sign * 100 * paired.ci95.high))
        interval = f" (95 % interval {low:.1f} to {high:.1f})"
    on = f"on {tasks}, {paired.better} of them better and {paired.worse} worse with {b}; p = {p:.3g}"
    if better is not None:
        return f"{split}: {better} is better than {a if better == b else b} by {points}{interval} {on}."
    signed = f"{100 * paired.difference:+.1f} points"
    return f"{split}: {b} against {a} is {signed}{interval} {on}: chance alone may explain that."


def _columns(contenders: Sequence[TrainingContender], iteration: int) -> dict[str, tuple[float | None, ...]]:
    values = {name: tuple(_latest(each.rows, name, iteration) for each in contenders) for name in COLUMNS}
    return {name: row for name, row in values.items() if any(value is not None for value in row)}


def _latest(rows: Sequence[Mapping[str, Json]], name: str, iteration: int) -> float | None:
    having = [
        row[name]
        for row in rows
        if row["iteration"] <= iteration and isinstance(row.get(name), int | float) and not isinstance(row[name], bool)
    ]
    return float(having[-1]) if having else None
