"""Comparison of runs: which is better, by how much, and whether the data can tell."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gymcp.errors import ConfigError
from gymcp.evaluators.metrics import Bounds, Mean, bounds_of, coverage_floor, explain_low_coverage, rate
from gymcp.evaluators.metrics.measure import by_task, coverage, mean_component
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.evaluators.statistics import (
    Paired,
    Power,
    Scores,
    compare_paired,
    holm,
    mean_ci95,
    noise_floor,
    plan_trials,
    t_by_task,
    within_task_variance,
)
from gymcp.evaluators.suite_groups import COMPARED_KEYS
from gymcp.store import EpisodeRow
from gymcp.types import Json

SIGNIFICANCE_LEVEL = 0.05
_SUCCESSES = ("success", "score")
"""Metrics that say how well a run did."""
RESOLUTION = 0.05
"""Difference of success rates that `Pair.power` is about by default."""

REFERENCE_AGENTS = ("oracle", "null", "mutated")
"""Agents that test a suite rather than themselves. If two or more other runs are compared, the verdict is about
those."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A run to be compared."""

    name: str
    config: Mapping[str, Json]
    """The run's `Run.config`."""
    rows: Sequence[EpisodeRow]
    """The run's episodes, latest attempts only."""
    folder: str = ""
    """Run folder, for messages that say what to type; empty: the name."""
    lacks_judged_s: bool = False
    """True for a search whose episodes lack the seconds of its judge or trained head."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The quantity that runs are compared in."""

    name: str
    unit: str
    """``%`` for a share of 1."""
    higher_is_better: bool
    value: Callable[[EpisodeRow], float | None]
    """Value of an episode; None if it has none and is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    name: str
    mean: Mean
    coverage: str
    """Coverage in words: "488/500 scored, 12 infra"."""
    comparable: bool
    """False for a run with other tasks than the first, below the coverage floor, or without a score: it is listed but
    not ranked."""
    bounds: Bounds | None = None
    """Mean over all episodes if all lost ones had failed or succeeded; None for metrics other than success and
    score."""
    net_of_price: float | None = None
    """Mean of the score less what the episode's questions or calls cost; None without such prices, and for metrics
    other than success and score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    a: str
    b: str
    paired: Paired
    """Statistics of b against a."""
    p_holm: float | None
    """P-value of the permutation test, corrected for the number of pairs; None if no task is shared."""
    noise_floor: float | None
    """Largest difference that two runs of one policy reach by chance in 95 % of cases; None if neither run repeated a
    task."""
    better: str | None
    """Name of the better run; None if the data cannot tell."""
    power: Power | None
    """Trials or tasks needed for the resolution; None for a metric that is no share, or if no variance was measured."""
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    metric: Metric
    standings: tuple[Standing, ...]
    """Standing of each run, in the order given."""
    pairs: tuple[Pair, ...]
    problems: tuple[str, ...]
    """Runs that could not be compared, each with the reason."""
    verdict: str
    """Conclusion in one sentence."""


def compare(
    contenders: Sequence[Contender],
    *,
    metric: str = "success",
    resolution: float = RESOLUTION,
    min_coverage: float | None = None,
) -> Comparison:
    """Standing of every run, and statistics of each pair on the tasks that both have scores of.

    One run of a pair counts as better if the permutation test, corrected for all pairs, is significant at 5 % and the
    difference exceeds the noise floor, if that is known. A run is not ranked if a smaller share of its episodes than
    `min_coverage` is scored (None: the floor of the run's config, else the default one).

    Raises ConfigError for fewer than two runs, two runs of one name, or a metric that no run has.
    """
    names = [contender.name for contender in contenders]
    if len(names) < 2:
        raise ConfigError(f"compare: {len(names)} runs; it takes two or more")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ConfigError(f"compare: two runs are called '{twice[0]}'")
    measured = find_metric(metric, contenders)
    scores = {each.name: _scores(measured, each.rows) for each in contenders}
    sparse = _find_sparse(contenders, min_coverage)
    problems = _problems(contenders, scores, sparse)
    fit = [name for name in names if name not in problems]
    pairs = _pairs(measured, {name: scores[name] for name in fit}, resolution)
    tried = [each.name for each in contenders if each.name in fit and each.config.get("agent") not in REFERENCE_AGENTS]
    standings = tuple(
        Standing(
            name=each.name,
            mean=_mean_of(measured, scores[each.name]),
            coverage=coverage(each.rows),
            comparable=each.name in fit,
            bounds=_bounds(measured, scores[each.name], each.rows),
            net_of_price=mean_component(each.rows, NET_OF_PRICE) if measured.name in _SUCCESSES else None,
        )
        for each in contenders
    )
    return Comparison(
        metric=measured,
        standings=standings,
        pairs=pairs,
        problems=tuple(problems.values()),
        verdict=_verdict(
            measured,
            tried if len(tried) > 1 else fit,
            pairs,
            [name for name in problems if problems[name] == sparse.get(name)],
        ),
    )


def find_metric(name: str, contenders: Sequence[Contender]) -> Metric:
    """The metric of that name: one of `METRICS`, or a component from graders. Raises ConfigError for another name."""
    if name in METRICS:
        return METRICS[name]
    components = {part for each in contenders for row in each.rows for part in row.components}
    if name in components:
        values = [row.components[name] for each in contenders for row in each.rows if name in row.components]
        if not all(0 <= value <= 1 for value in values):
            raise ConfigError(f"compare: component '{name}' is no share: {max(values):g} is among its values")
        return Metric(name=name, unit="%", higher_is_better=True, value=lambda row: row.components.get(name))
    have = ", ".join([*METRICS, *sorted(components - METRICS.keys())])
    raise ConfigError(f"compare: no metric '{name}'; these runs have {have}")


METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="success",
            unit="%",
            higher_is_better=True,
            value=lambda row: None if row.success is None else float(row.success),
        ),
        Metric(name="score", unit="%", higher_is_better=True, value=lambda row: row.score),
        Metric(name="steps", unit="", higher_is_better=False, value=lambda row: float(row.steps)),
        Metric(name="tool_calls", unit="", higher_is_better=False, value=lambda row: float(row.usage.tool_calls)),
        Metric(name="prompt_tokens", unit="", higher_is_better=False, value=lambda row: row.usage.prompt_tokens),
        Metric(
            name="completion_tokens", unit="", higher_is_better=False, value=lambda row: row.usage.completion_tokens
        ),
        Metric(
            name="seconds", unit="s", higher_is_better=False, value=lambda row: row.usage.agent_s + row.usage.tool_s
        ),
        Metric(name="agent_seconds", unit="s", higher_is_better=False, value=lambda row: row.usage.agent_s),
        Metric(name="tool_seconds", unit="s", higher_is_better=False, value=lambda row: row.usage.tool_s),
        Metric(name="cost", unit="", higher_is_better=False, value=lambda row: row.usage.cost),
    )
}


def _scores(metric: Metric, rows: Iterable[EpisodeRow]) -> Scores:
    return by_task(
        (row.task, value) for row in rows if row.score is not None and (value := metric.value(row)) is not None
    )


def _mean_of(metric: Metric, scores: Scores) -> Mean:
    flat = [value for of_task in scores.values() for value in of_task]
    interval = mean_ci95(scores) if metric.unit == "%" else t_by_task(scores)
    return Mean(value=math.fsum(flat) / len(flat) if flat else None, ci95=interval, episodes=len(flat))


def _bounds(metric: Metric, scores: Scores, rows: Sequence[EpisodeRow]) -> Bounds | None:
    if metric.name not in _SUCCESSES:
        return None
    values = [value for of_task in scores.values() for value in of_task]
    return bounds_of(math.fsum(values) / len(values) if values else None, len(values), len(rows))


def _find_sparse(contenders: Sequence[Contender], min_coverage: float | None) -> dict[str, str]:
    """Reason for each run that too few episodes of have a score, by the run's name."""
    sparse = {}
    for each in contenders:
        floor = coverage_floor(each.config, min_coverage)
        lost = [row for row in each.rows if row.score is None]
        if why := explain_low_coverage(rate(each.rows), floor, lost=lost, folder=each.folder or each.name):
            sparse[each.name] = f"{each.name}: {why}"
    return sparse


def _problems(
    contenders: Sequence[Contender], scores: Mapping[str, Scores], sparse: Mapping[str, str]
) -> dict[str, str]:
    """Reason for each run that cannot be compared, by the run's name."""
    problems = {name: f"{name}: has no score" for name, of_run in scores.items() if not of_run}
    problems = {**sparse, **problems}
    whole = [each for each in contenders if each.name not in problems]
    for each in whole[1:]:
        first = whole[0]
        if parted := [key for key in COMPARED_KEYS if each.config.get(key) != first.config.get(key)]:
            key = parted[0]
            problems[each.name] = (
                f"{each.name}: {key} is {each.config.get(key, 'unknown')}, of {first.name} it is"
                f" {first.config.get(key, 'unknown')}: the tasks are others, so the two are not compared"
            )
        elif not scores[each.name].keys() & scores[first.name].keys():
            problems[each.name] = f"{each.name}: has a score of no task that {first.name} has one of"
    return problems


def _pairs(metric: Metric, scores: Mapping[str, Scores], resolution: float) -> tuple[Pair, ...]:
    compared = {(a, b): compare_paired(scores[a], scores[b]) for a, b in combinations(scores, 2)}
    corrected = holm({pair: each.p_permutation for pair, each in compared.items() if each.p_permutation is not None})
    pairs = []
    for (a, b), each in compared.items():
        shared = [{task: run[task] for task in scores[a] if task in scores[b]} for run in (scores[a], scores[b])]
        floor = noise_floor(*shared)
        p = corrected.get((a, b))
        better = _better(metric, a, b, each.difference, p, floor)
        pairs.append(
            Pair(
                a=a,
                b=b,
                paired=each,
                p_holm=p,
                noise_floor=floor,
                better=better,
                power=_power(shared[0], shared[1], resolution) if metric.unit == "%" else None,
                words=_describe_pair(metric, a, b, each, p, floor, better, _describe_tasks(scores[a], scores[b], each)),
            )
        )
    return tuple(pairs)


def _better(
    metric: Metric, a: str, b: str, difference: float | None, p: float | None, floor: float | None
) -> str | None:
    if difference is None or p is None or p >= SIGNIFICANCE_LEVEL or (floor is not None and abs(difference) <= floor):
        return None
    return b if (difference > 0) == metric.higher_is_better else a


def _power(a: Scores, b: Scores, resolution: float) -> Power | None:
    within = [each for run in (a, b) if (each := within_task_variance(run)) is not None]
    if not within or len(a) < 2:
        return None
    spread = math.fsum(within) / len(within)
    differences = [math.fsum(b[task]) / len(b[task]) - math.fsum(a[task]) / len(a[task]) for task in a]
    mean = math.fsum(differences) / len(differences)
    variance = math.fsum((each - mean) ** 2 for each in differences) / (len(differences) - 1)
    per_trial = math.fsum(1 / len(a[task]) + 1 / len(b[task]) for task in a) / len(a)
    between = max(0.0, variance - spread * per_trial)
    if spread == 0 and between == 0:  # no variance, so there is nothing to plan
        return None
    return plan_trials(resolution, tasks=len(a), trials=2 / per_trial, within=spread, between=between)


def _describe_tasks(a: Scores, b: Scores, pair: Paired) -> str:
    """The tasks that a statement is about, in words; empty if it is about all of them."""
    if pair.tasks == max(len(a), len(b)):
        return ""
    return f" on the {pair.tasks} tasks that both have" if pair.tasks > 1 else " on the one task that both have"


def _describe_pair(
    metric: Metric, a: str, b: str, pair: Paired, p: float | None, floor: float | None, better: str | None, where: str
) -> str:
    if pair.difference is None or p is None:
        return f"{a} and {b} share no task with a score."
    size = format_value(metric, abs(pair.difference), difference=True)
    bounds = ""
    if pair.ci95 is not None:
        low, high = sorted((pair.ci95.low, pair.ci95.high))
        if pair.difference < 0:
            low, high = -high, -low
        bounds = f", 95 % interval {_format_number(metric, low)} to {format_value(metric, high, difference=True)}"
    if better is not None:
        other = a if better == b else b
        is_better = "is better" if metric.higher_is_better else "takes less"
        return f"{better} {is_better} than {other} by {size}{where}{bounds}; chance alone: p = {p:.2g}."
    why = f"chance alone makes such a difference in {max(1, round(100 * p))} % of cases"
    if floor is not None and abs(pair.difference) <= floor:
        why = f"two runs of one policy differ by up to {format_value(metric, floor, difference=True)} by themselves"
    if pair.difference == 0:
        why = "the difference is 0"
    return f"{a} and {b} cannot be told apart: they differ by {size}{where}{bounds}; {why}."


def _verdict(metric: Metric, fit: Sequence[str], pairs: Sequence[Pair], sparse: Sequence[str]) -> str:
    if len(fit) < 2 and sparse:
        return f"No ranking: too few episodes have a score in {' and in '.join(sparse)}."
    if len(fit) < 2:
        return "There are no two runs that can be compared."
    inside = [pair for pair in pairs if pair.a in fit and pair.b in fit]
    if len(inside) == 1 < len(pairs):
        return inside[0].words
    pairs = inside
    best = [name for name in fit if all(pair.better == name for pair in pairs if name in (pair.a, pair.b))]
    if best:
        return f"{best[0]} {'is the best in' if metric.higher_is_better else 'takes the least'} {metric.name}."
    beaten = {pair.a if pair.better == pair.b else pair.b for pair in pairs if pair.better is not None}
    unbeaten = [name for name in fit if name not in beaten]
    if len(unbeaten) == len(fit):
        return f"No run can be put before another in {metric.name}: what they differ by is within the noise."
    if not unbeaten:
        return f"No run can be put before all others in {metric.name}: each is beaten by one of them."
    if len(unbeaten) == 1:
        (name,) = unbeaten
        others = [{pair.a, pair.b} - {name} for pair in pairs if not pair.better and name in (pair.a, pair.b)]
        unclear = " and ".join(other for each in others for other in each)
        return f"In {metric.name}, {name} is not beaten by any other, but not to be told apart from {unclear}."
    few = min(pair.paired.tasks for pair in pairs if pair.a in unbeaten and pair.b in unbeaten)
    shared = ""
    if few < max(pair.paired.tasks for pair in pairs):
        shared = f" on the {few} tasks that they share" if len(unbeaten) == 2 else " on the tasks that they share"
    return f"In {metric.name}, {' and '.join(unbeaten)} cannot be told apart{shared}; they are not beaten by any other."


def format_value(metric: Metric, value: float, *, difference: bool = False) -> str:
    """A value of the metric in words: "81.2 %"; for a difference of shares "3.1 points"."""
    unit = "points" if difference and metric.unit == "%" else metric.unit
    return f"{_format_number(metric, value)} {unit}".rstrip()


def _format_number(metric: Metric, value: float) -> str:
    return f"{100 * value:.1f}" if metric.unit == "%" else f"{value:,.4g}"
