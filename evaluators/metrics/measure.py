"""Computation of a run's metrics from its episodes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from gymcp.evaluators.metrics.calls import CallFigures, GoldFigures, examine
from gymcp.evaluators.metrics.records import (
    CallRates,
    Effort,
    Mean,
    Metrics,
    PassK,
    Radar,
    Rate,
    Retries,
    Spending,
    Times,
)
from gymcp.evaluators.names import natural_order
from gymcp.evaluators.statistics import (
    Latency,
    Scores,
    compare_groups,
    flake_index,
    latency_of,
    mean_ci95,
    noise_floor,
    pass_at_k,
    pass_hat_k,
    t_by_task,
)
from gymcp.outcome import Outcome
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.types import Step, Task

AXES = {
    "level": "difficulty",
    "difficulty": "difficulty",
    "server": "server",
    "scope": "scope",
    "structure": "structure",
    "split": "split",
    "request": "request",
}
"""Axis that a tag belongs to, by the tag's first word, as in ``level 3``."""

REFERENCE_S = 5.0
"""Seconds for each gold call and user turn at which `Radar.speed` is 1/2."""

COST = "cost/"
"""Beginning of the names of `Metrics.effort` that are components of the cost of calls."""
Amount = tuple[str, Callable[[EpisodeRow], float]]
"""(unit, amount of an episode)"""
_EFFORT: Mapping[str, Amount] = {
    "steps": ("", lambda row: row.steps),
    "tool_calls": ("", lambda row: row.usage.tool_calls),
    "prompt_tokens": ("tokens", lambda row: row.usage.prompt_tokens),
    "completion_tokens": ("tokens", lambda row: row.usage.completion_tokens),
    "seconds": ("s", lambda row: row.usage.agent_s + row.usage.tool_s),
    "cost": ("", lambda row: row.usage.cost),
}
"""Unit and amount of each kind of effort. Seconds are those of agent and tools: resets, grading and the harness are not
the policy's."""


PriceSteps = Callable[[Sequence[Step]], Mapping[str, float]]
"""Function from an episode's steps to the cost of their calls by component."""


def examine_run(
    store: TrajectoryStore, tasks: Mapping[str, Task], price: PriceSteps = lambda steps: {}
) -> dict[str, CallFigures]:
    """Call figures by trajectory id, for `measure`; `tasks` by id, {} if they are not available."""
    return {
        trajectory.id: replace(examine(trajectory, tasks.get(trajectory.task)), costs=price(trajectory.steps))
        for trajectory in store.iter_trajectories(latest=True, tokens=False)
    }


def measure(attempts: Iterable[EpisodeRow], calls: Mapping[str, CallFigures] | None = None) -> Metrics:
    """Metrics of a run. Attempts that a later one replaced do not count, but their cost and time do.

    `calls`: figures from `examine` for each episode, by trajectory id.
    """
    attempts = list(attempts)
    counted = [row for row in attempts if row.latest]
    scored = [row for row in counted if row.score is not None]
    outcomes = Counter(row.outcome for row in counted)
    scores = by_task((row.task, row.score) for row in scored if row.score is not None)
    successes = successes_of(scored)
    return Metrics(
        overall=rate(counted),
        score=Mean(value=_mean(_flat(scores)), ci95=mean_ci95(scores), episodes=len(scored)),
        retries=_retries(counted),
        tasks=len({row.task for row in counted}),
        tasks_without_score=len({row.task for row in counted} - scores.keys()),
        outcomes={outcome: outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
        tool_calls=sum(row.usage.tool_calls for row in counted),
        tool_errors=sum(row.usage.tool_errors for row in counted),
        attempts=len(attempts),
        wall_s=_running_s(attempts),
        episode_s=math.fsum(row.usage.wall_s for row in attempts),
        times=_times(attempts),
        breakdowns=_breakdowns(counted),
        components=_components(scored),
        spent=_spending(attempts),
        pass_k=measure_pass_k(counted),
        effort={**_effort(scored, _EFFORT), **_effort(scored, _cost_effort(scored, calls or {}))},
        flake=flake_index(successes),
        noise_floor=noise_floor(successes),
        calls=None if calls is None else _call_rates([calls[row.id] for row in scored if row.id in calls]),
        radar=None if calls is None else _radar(scored, calls),
        model_latency=None if calls is None else _model_latency(counted, calls),
        **({} if calls is None else _latencies([calls[row.id] for row in counted if row.id in calls])),
        tokens_per_s=None if calls is None else _tokens_per_s(counted, calls),
    )


def _model_latency(rows: Sequence[EpisodeRow], calls: Mapping[str, CallFigures]) -> Latency | None:
    asked = [row for row in rows if asked_model(row)]
    return latency_of(each for row in asked if row.id in calls for each in calls[row.id].decisions_s)


def asked_model(row: EpisodeRow) -> bool:
    """True if the episode's agent asked a model: a scripted one decides without, so its decisions have no latency."""
    return bool(row.usage.models or row.usage.completion_tokens)


def _latencies(figures: Sequence[CallFigures]) -> dict[str, Latency | None]:
    """Latency of requests, of their first tokens and of tool calls, by its name in `Metrics`."""
    return {
        "request_latency": latency_of(each for found in figures for each in found.requests_s),
        "first_token_latency": latency_of(each for found in figures for each in found.first_tokens_s),
        "tool_latency": latency_of(each for found in figures for each in found.results_s),
    }


def _tokens_per_s(rows: Sequence[EpisodeRow], calls: Mapping[str, CallFigures]) -> float | None:
    """Speed of one request, over the episodes whose requests were measured."""
    measured = [row for row in rows if row.id in calls and calls[row.id].requests_s]
    seconds = math.fsum(each for row in measured for each in calls[row.id].requests_s)
    written = sum(row.usage.completion_tokens for row in measured)
    return written / seconds if written and seconds else None


def axes_of(tags: Sequence[str]) -> list[tuple[str, str]]:
    """(axis, value) of each tag: the axis in `AXES` if the tag begins with one of its words, else ``category`` for the
    first tag and ``tag`` for the rest."""
    axes, rest = [], "category"
    for tag in tags:
        first, space, value = tag.partition(" ")
        if space and first in AXES:
            axes.append((AXES[first], value))
        else:
            axes.append((rest, tag))
            rest = "tag"
    return axes


def successes_of(rows: Iterable[EpisodeRow]) -> dict[str, list[float]]:
    """Task -> 1 for each scored trial that succeeded, 0 for each that did not."""
    return by_task((row.task, float(row.success)) for row in rows if row.success is not None)


def _spending(rows: Sequence[EpisodeRow]) -> Spending:
    return Spending(
        prompt_tokens=sum(row.usage.prompt_tokens for row in rows),
        completion_tokens=sum(row.usage.completion_tokens for row in rows),
        cost=math.fsum(row.usage.cost for row in rows),
        tools=_sum_by_name(row.usage.tools for row in rows),
        models=_sum_by_name(row.usage.models for row in rows),
    )


def _times(rows: Sequence[EpisodeRow]) -> Times:
    used = [row.usage for row in rows]
    seconds = {
        "policy": math.fsum(usage.agent_s for usage in used),
        "tool": math.fsum(usage.tool_s for usage in used),
        "reset": math.fsum(usage.reset_s for usage in used),
        "grading": math.fsum(usage.grading_s for usage in used),
        "harness": math.fsum(usage.harness_s for usage in used),
    }
    total = math.fsum(seconds.values())
    ran_s = _running_s(rows)
    return Times(
        seconds=seconds,
        share={name: part / total if total else 0.0 for name, part in seconds.items()},
        policy_requests=seconds["policy"] / ran_s if ran_s else None,
        tool_calls=seconds["tool"] / ran_s if ran_s else None,
    )


def _sum_by_name(parts: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, Mapping[str, float]]:
    sums: dict[str, Counter[str]] = {}
    for part in parts:
        for name, figures in part.items():
            sums.setdefault(name, Counter()).update(figures)
    return {name: dict(sums[name]) for name in sorted(sums)}


def rate(rows: Sequence[EpisodeRow]) -> Rate:
    """Success rate of these episodes."""
    successes = successes_of(rows)
    flat = _flat(successes)
    return Rate(
        episodes=len(rows),
        scored=len(flat),
        success=_mean(flat),
        ci95=mean_ci95(successes),
        coverage=coverage(rows),
    )


def _retries(counted: Sequence[EpisodeRow]) -> Retries | None:
    """Retried episodes beside the others; None if no episode was retried."""
    again = [row for row in counted if row.attempt > 0]
    if not again:
        return None
    first = [row for row in counted if row.attempt == 0]
    comparison = compare_groups(
        (row.task, row.attempt > 0, float(row.success)) for row in counted if row.success is not None
    )
    return Retries(
        first=rate(first),
        retried=rate(again),
        difference=comparison.difference,
        p=comparison.p,
        method=comparison.method,
    )


def coverage(rows: Sequence[EpisodeRow]) -> str:
    lost = Counter(_loss_reason(row.outcome) for row in rows if row.score is None)
    scored = len(rows) - lost.total()
    return ", ".join([f"{scored}/{len(rows)} scored", *(f"{n} {why}" for why, n in sorted(lost.items()))])


def _loss_reason(outcome: Outcome) -> str:
    if outcome.is_infra:
        return "infra"
    return "ungraded" if outcome.has_score else str(outcome).replace("_", " ")


def _breakdowns(rows: Sequence[EpisodeRow]) -> dict[str, dict[str, Rate]]:
    """Rates by axis and value, each in natural order; axes of first tags come first.

    The order is the same for all runs of the same tasks, whichever episode ended first.
    """
    parts: dict[str, dict[str, list[EpisodeRow]]] = {}
    rows_with_axes = [(row, axes_of(row.tags)) for row in rows]
    deepest = max((len(axes) for _, axes in rows_with_axes), default=0)
    for place in range(deepest):
        at_place = [(*axes[place], row) for row, axes in rows_with_axes if place < len(axes)]
        for axis, value, row in sorted(at_place, key=lambda each: natural_order(each[0])):
            parts.setdefault(axis, {}).setdefault(value, []).append(row)
    return {
        axis: {value: rate(values[value]) for value in sorted(values, key=natural_order)}
        for axis, values in parts.items()
    }


def _cost_effort(scored: Sequence[EpisodeRow], calls: Mapping[str, CallFigures]) -> Mapping[str, Amount]:
    """Amounts of each component of the cost of calls that an episode had."""
    names = dict.fromkeys(name for row in scored if row.id in calls for name in calls[row.id].costs)

    def amount_of(name: str) -> Callable[[EpisodeRow], float]:
        return lambda row: calls[row.id].costs.get(name, 0.0) if row.id in calls else 0.0

    return {f"{COST}{name}": ("s" if name == "seconds" else "", amount_of(name)) for name in names}


def _effort(scored: Sequence[EpisodeRow], amounts_of: Mapping[str, Amount]) -> dict[str, Effort]:
    passed = sum(bool(row.success) for row in scored)
    effort = {}
    for name, (unit, amount) in amounts_of.items():
        amounts = by_task((row.task, float(amount(row))) for row in scored)
        total = math.fsum(_flat(amounts))
        effort[name] = Effort(unit=unit, mean=_mean_of(amounts), per_pass=total / passed if passed else None)
    return effort


def _call_rates(figures: Sequence[CallFigures]) -> CallRates:
    calls = sum(each.made for each in figures)
    return CallRates(
        made=calls,
        error_rate=sum(each.errors for each in figures) / calls if calls else None,
        invalid_rate=sum(each.invalid for each in figures) / calls if calls else None,
        redundant_rate=sum(each.redundant for each in figures) / calls if calls else None,
    )


def _radar(scored: Sequence[EpisodeRow], calls: Mapping[str, CallFigures]) -> Radar | None:
    played = [
        (row, figures.made, figures.gold)
        for row in scored
        if (figures := calls.get(row.id)) is not None and figures.gold is not None
    ]
    if not played:
        return None
    passed = [each for each in played if each[0].success]

    def seconds(row: EpisodeRow) -> float:
        return row.usage.agent_s + row.usage.tool_s

    def allowance_s(gold: GoldFigures) -> float:
        return REFERENCE_S * (gold.wanted + gold.turns)

    def right(gold: GoldFigures) -> float:
        return 1.0 if gold.first_error is None else min(1.0, (gold.first_error - 1) / gold.wanted)

    return Radar(
        tasks=len({row.task for row, _, _ in played}),
        accuracy=_share((row.task, float(bool(row.success))) for row, _, _ in played),
        selection=_share((row.task, gold.selection) for row, _, gold in played),
        parameters=_share((row.task, gold.parameters) for row, _, gold in played if gold.parameters is not None),
        efficiency=_share((row.task, gold.wanted / max(made, gold.wanted)) for row, made, gold in passed),
        speed=_share((row.task, allowance_s(gold) / (allowance_s(gold) + seconds(row))) for row, _, gold in passed),
        first_error=_share((row.task, right(gold)) for row, _, gold in played),
        offered=_share((row.task, gold.offered) for row, _, gold in played),
    )


def mean_component(rows: Iterable[EpisodeRow], name: str) -> float | None:
    """Mean of the component over the scored episodes that have it; None if none has."""
    return _mean([row.components[name] for row in rows if row.score is not None and name in row.components])


def _components(scored: Sequence[EpisodeRow]) -> dict[str, float]:
    names = dict.fromkeys(name for row in scored for name in row.components)
    return {name: mean for name in names if (mean := mean_component(scored, name)) is not None}


def measure_pass_k(counted: Sequence[EpisodeRow]) -> tuple[PassK, ...]:
    """pass@k and pass^k for each k up to the largest number of scored episodes of a task; empty if no task has two."""
    trials = successes_of(counted)
    tasks = len({row.task for row in counted})
    most = max(map(len, trials.values()), default=0)
    if most < 2:
        return ()
    entries = []
    for k in range(1, most + 1):
        counts = [(len(of_task), int(sum(of_task))) for of_task in trials.values() if len(of_task) >= k]
        entries.append(
            PassK(
                k=k,
                at=math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts),
                hat=math.fsum(pass_hat_k(n, c, k) for n, c in counts) / len(counts),
                tasks=len(counts),
                short=tasks - len(counts),
                fewest=min(n for n, _ in counts),
                most=max(n for n, _ in counts),
            )
        )
    return tuple(entries)


def by_task(scores: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    """(task, score) pairs -> task -> scores."""
    of_task: dict[str, list[float]] = {}
    for task, score in scores:
        of_task.setdefault(task, []).append(score)
    return of_task


def _share(scores: Iterable[tuple[str, float]]) -> Mean:
    """Mean of scores in [0, 1]."""
    of_tasks = by_task(scores)
    return Mean(value=_mean(_flat(of_tasks)), ci95=mean_ci95(of_tasks), episodes=len(_flat(of_tasks)))


def _mean_of(amounts: Scores) -> Mean:
    """Mean of amounts of any size."""
    return Mean(value=_mean(_flat(amounts)), ci95=t_by_task(amounts), episodes=len(_flat(amounts)))


def _flat(scores: Scores) -> list[float]:
    return [score for of_task in scores.values() for score in of_task]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _running_s(rows: Sequence[EpisodeRow]) -> float:
    """Seconds in which at least one of the attempts was running: the length of the union of their spans."""
    spans = [(row.usage.started_at, row.usage.started_at + row.usage.wall_s) for row in rows if row.usage.wall_s]
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
