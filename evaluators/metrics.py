"""From the episodes of a run to the numbers one quotes. What has no score is counted apart and is in no mean."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.statistics import Interval, mean_ci95, pass_at_k, pass_hat_k
from gymcp.store import EpisodeRow
from gymcp.types import Outcome, Task, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """How often a set of episodes succeeded, and of how many that can be said."""

    episodes: int
    scored: int
    success: float | None
    """Share of full scores among the scored episodes; None where none is scored."""
    ci95: Interval | None
    """Of `success`; None where none is scored."""
    coverage: str
    """In words: "488/500 scored, 12 infra"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassK:
    """Success over k trials of a task, averaged over the tasks that have at least k scored ones."""

    k: int
    at: float
    """pass@k: at least one of k succeeds."""
    hat: float
    """pass^k: all of k succeed."""
    tasks: int


def calls_beyond_gold(task: Task, trajectory: Trajectory) -> int:
    """How many calls more were made than the gold makes; 0 where it makes as many or more, or a task has no gold."""
    wanted = sum(len(turn.calls) for turn in task.gold)
    return max(trajectory.usage.tool_calls - wanted, 0) if task.gold else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    prompt_tokens: int
    completion_tokens: int
    cost: float
    """Of tools and models together."""
    tools: Mapping[str, Mapping[str, float]]
    """As in `Usage`, summed."""
    models: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where the seconds of all attempts went, lost ones too, and who waited for whom."""

    seconds: Mapping[str, float]
    """Of ``policy``, ``tool``, ``reset``, ``grading`` and ``harness``, summed over episodes that ran side by side."""
    share: Mapping[str, float]
    """The same, of all of them. What is not the policy's, an episode's policy has waited; likewise its tools."""
    policy_requests: float | None
    """Mean number of decisions under way while anything ran; None where nothing did."""
    tool_calls: float | None
    """The same of tool calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    overall: Rate
    mean_score: float | None
    """With partial credit; None where none is scored."""
    mean_score_ci95: Interval | None
    outcomes: Mapping[Outcome, int]
    """Those that occurred, in the order of `Outcome`."""
    tool_calls: int
    tool_errors: int
    wall_s: float
    """Seconds in which at least one episode was running; pauses between resumed sessions do not count."""
    episode_s: float
    """Summed over episodes, which may have run side by side."""
    times: Times
    breakdown: Mapping[str, Rate]
    """By tag: first tags first, as they are the most important, in the order of first appearance."""
    components: Mapping[str, float]
    """Mean of each over the scored episodes that have it."""
    spent: Spending
    """By every attempt, replaced ones too: they were paid for."""
    pass_k: tuple[PassK, ...]
    """For k = 1 up to the most trials that any task has; empty where no task has more than one."""


def summarise(rows: Iterable[EpisodeRow]) -> Summary:
    """The numbers of a run. Attempts that a later one replaced do not count, but what they cost does."""
    attempts = list(rows)
    counted = [row for row in attempts if row.latest]
    scored = [row for row in counted if row.score is not None]
    outcomes = Counter(row.outcome for row in counted)
    scores = _by_task((row.task, row.score) for row in scored if row.score is not None)
    return Summary(
        overall=rate(counted),
        mean_score=_mean([score for of_task in scores.values() for score in of_task]),
        mean_score_ci95=mean_ci95(scores),
        outcomes={outcome: outcomes[outcome] for outcome in Outcome if outcomes[outcome]},
        tool_calls=sum(row.usage.tool_calls for row in counted),
        tool_errors=sum(row.usage.tool_errors for row in counted),
        wall_s=_covered(
            (row.usage.started_at, row.usage.started_at + row.usage.wall_s) for row in counted if row.usage.wall_s
        ),
        episode_s=math.fsum(row.usage.wall_s for row in counted),
        times=_times(attempts),
        breakdown=_breakdown(counted),
        components=_components(scored),
        spent=_spending(attempts),
        pass_k=_pass_k(scored),
    )


def _spending(rows: Sequence[EpisodeRow]) -> Spending:
    return Spending(
        prompt_tokens=sum(row.usage.prompt_tokens for row in rows),
        completion_tokens=sum(row.usage.completion_tokens for row in rows),
        cost=math.fsum(row.usage.cost for row in rows),
        tools=_summed(row.usage.tools for row in rows),
        models=_summed(row.usage.models for row in rows),
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
    ran_s = _covered((usage.started_at, usage.started_at + usage.wall_s) for usage in used if usage.wall_s)
    return Times(
        seconds=seconds,
        share={name: part / total if total else 0.0 for name, part in seconds.items()},
        policy_requests=seconds["policy"] / ran_s if ran_s else None,
        tool_calls=seconds["tool"] / ran_s if ran_s else None,
    )


def _summed(parts: Iterable[Mapping[str, Mapping[str, float]]]) -> dict[str, Mapping[str, float]]:
    found: dict[str, Counter[str]] = {}
    for part in parts:
        for name, figures in part.items():
            found.setdefault(name, Counter()).update(figures)
    return {name: dict(found[name]) for name in sorted(found)}


def rate(rows: Sequence[EpisodeRow]) -> Rate:
    """How often these episodes succeeded."""
    successes = _by_task((row.task, float(row.success)) for row in rows if row.success is not None)
    flat = [success for of_task in successes.values() for success in of_task]
    return Rate(
        episodes=len(rows),
        scored=len(flat),
        success=_mean(flat),
        ci95=mean_ci95(successes),
        coverage=_coverage(rows),
    )


def _coverage(rows: Sequence[EpisodeRow]) -> str:
    lost = Counter(_lost_to(row.outcome) for row in rows if row.score is None)
    scored = len(rows) - lost.total()
    return ", ".join([f"{scored}/{len(rows)} scored", *(f"{n} {why}" for why, n in sorted(lost.items()))])


def _lost_to(outcome: Outcome) -> str:
    if outcome.is_infra:
        return "infra"
    return "ungraded" if outcome.has_score else str(outcome).replace("_", " ")


def _breakdown(rows: Sequence[EpisodeRow]) -> dict[str, Rate]:
    deepest = max((len(row.tags) for row in rows), default=0)
    tags = dict.fromkeys(row.tags[place] for place in range(deepest) for row in rows if place < len(row.tags))
    return {tag: rate([row for row in rows if tag in row.tags]) for tag in tags}


def _components(scored: Sequence[EpisodeRow]) -> dict[str, float]:
    names = dict.fromkeys(name for row in scored for name in row.components)
    return {
        name: math.fsum(values) / len(values)
        for name in names
        if (values := [row.components[name] for row in scored if name in row.components])
    }


def _pass_k(scored: Sequence[EpisodeRow]) -> tuple[PassK, ...]:
    trials = _by_task((row.task, float(row.success or 0.0)) for row in scored)
    most = max(map(len, trials.values()), default=0)
    if most < 2:
        return ()
    found = []
    for k in range(1, most + 1):
        counts = [(len(of_task), int(sum(of_task))) for of_task in trials.values() if len(of_task) >= k]
        found.append(
            PassK(
                k=k,
                at=math.fsum(pass_at_k(n, c, k) for n, c in counts) / len(counts),
                hat=math.fsum(pass_hat_k(n, c, k) for n, c in counts) / len(counts),
                tasks=len(counts),
            )
        )
    return tuple(found)


def _by_task(scores: Iterable[tuple[str, float]]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for task, score in scores:
        found.setdefault(task, []).append(score)
    return found


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _covered(spans: Iterable[tuple[float, float]]) -> float:
    """Length of the union of (start, end) spans."""
    total, reached = 0.0, -math.inf
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
