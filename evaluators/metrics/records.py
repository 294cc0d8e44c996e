"""The numbers of a run, as records. What has no score is counted apart and is in no mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gymcp.evaluators.statistics import Interval
from gymcp.types import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    value: float | None
    """None where there is nothing to take the mean of."""
    ci95: Interval | None
    """None where nothing can be said, as with a single task."""
    episodes: int
    """That it is the mean of."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """What scored episodes took of one thing. What lost attempts took is in `Spending`."""

    unit: str
    """Empty for what is merely counted."""
    mean: Mean
    """Of one scored episode."""
    per_pass: float | None
    """All of it over the number of successes; for money, the cost of a pass. None without a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRates:
    """Tool calls of the scored episodes, and shares of them; a share is None where nothing was called."""

    made: int
    error_rate: float | None
    invalid_rate: float | None
    redundant_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Radar:
    """Five dimensions, each in [0, 1] and better when larger, over scored episodes of tasks with gold calls.

    Source: the dimensions are those of MCP-RADAR, arXiv:2505.16700; the formulas are in docs/evaluation.md.
    """

    accuracy: Mean
    """Share of successes."""
    selection: Mean
    """F1 of the tools called and those that gold calls."""
    parameters: Mean
    """Share of arguments that are gold's, where the tool is."""
    efficiency: Mean
    """Gold calls for each call made, at most 1; of successes only, as giving up is no economy."""
    speed: Mean
    """1 for no time, 1/2 for `REFERENCE_S` for each gold call and user turn; of successes only."""
    first_error: Mean
    """How far an episode came before its first wrong or missing call, as a share of the gold calls; beside the five."""
    offered: Mean
    """Share of the tools of the gold calls that were ever on offer: the recall of a retrieval; beside the five."""


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
class Metrics:
    overall: Rate
    score: Mean
    """With partial credit."""
    outcomes: Mapping[Outcome, int]
    """Those that occurred, in the order of `Outcome`."""
    tool_calls: int
    tool_errors: int
    attempts: int
    """At the episodes: more than there are episodes where some were tried again."""
    wall_s: float
    """Seconds in which at least one attempt was running; pauses between attempts and resumed sessions do not count."""
    episode_s: float
    """Summed over all attempts, which may have run side by side."""
    times: Times
    breakdowns: Mapping[str, Mapping[str, Rate]]
    """By axis (``category``, ``difficulty``, ``server``, ..., ``tag``), then by value: see `axes_of`."""
    components: Mapping[str, float]
    """Mean of each over the scored episodes that have it."""
    spent: Spending
    """By every attempt, replaced ones too: they were paid for."""
    pass_k: tuple[PassK, ...]
    """For k = 1 up to the most trials that any task has; empty where no task has more than one."""
    effort: Mapping[str, Effort]
    """Of ``steps``, ``tool_calls``, ``prompt_tokens``, ``completion_tokens``, ``seconds`` and ``cost``."""
    flake: Mapping[str, float] = field(default_factory=dict)
    """Of each task with several scored trials: the chance that two of them end differently."""
    noise_floor: float | None = None
    """What two runs of this policy differ by, at most, in 95 % of cases; None where no task was repeated."""
    calls: CallRates | None = None
    """None where the calls were not looked at."""
    radar: Radar | None = None
    """None where the calls were not looked at, or no task has gold calls."""
