"""Metrics of a run, as records. Episodes without a score are counted apart and enter no mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gymcp.evaluators.statistics import Interval, Latency
from gymcp.outcome import Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Range of a mean score in [0, 1] over all episodes, lost ones included."""

    low: float
    """The mean if all lost episodes had failed."""
    high: float
    """The mean if all lost episodes had succeeded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    value: float | None
    """The mean; None if there are no values."""
    ci95: Interval | None
    """95 % interval; None if nothing can be said, as with a single task."""
    episodes: int
    """Number of episodes in the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """Success rate of a set of episodes, and the number of episodes it is based on."""

    episodes: int
    scored: int
    success: float | None
    """Share of full scores among the scored episodes; None if none is scored."""
    ci95: Interval | None
    """95 % interval of `success`; None if no episode is scored."""
    coverage: str
    """Coverage in words: "488/500 scored, 12 infra"."""

    @property
    def bounds(self) -> Bounds | None:
        """Success rate over all episodes, whatever the lost ones would have scored; None without episodes."""
        return bounds_of(self.success, self.scored, self.episodes)

    @property
    def coverage_share(self) -> float | None:
        """Share of the episodes that have a score; None without episodes."""
        return self.scored / self.episodes if self.episodes else None


def bounds_of(mean: float | None, scored: int, episodes: int) -> Bounds | None:
    """Bounds of the mean over all episodes, from the `mean` over the scored ones; None without episodes."""
    if not episodes:
        return None
    total = 0.0 if mean is None else mean * scored
    return Bounds(low=total / episodes, high=(total + episodes - scored) / episodes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """Episodes that were scored at the first attempt, beside those that were lost and played again.

    If the two differ, playing lost episodes again has shifted the success rate: episodes that fail may be likelier to
    be lost.
    """

    first: Rate
    """Episodes whose first attempt counts."""
    retried: Rate
    """Episodes whose counted attempt is a later one."""
    difference: float | None
    """Success rate of the retried episodes minus that of the others; None if one of the two has no score."""
    p: float | None
    """Two-sided p-value of the difference; None if one of the two has no score."""
    method: str
    """Method that computed `p`; empty if there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassK:
    """Success over k trials of a task, averaged over the tasks that have at least k scored ones."""

    k: int
    at: float
    """pass@k: the chance that at least one of k trials succeeds."""
    hat: float
    """pass^k: the chance that all of k trials succeed."""
    tasks: int
    """Tasks with at least k scored trials; only these are in the two means."""
    short: int = 0
    """Tasks with fewer scored trials, which are left out."""
    fewest: int = 0
    """Smallest n, the number of scored trials, among the tasks that count."""
    most: int = 0
    """Largest n among the tasks that count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """Consumption of one resource by scored episodes. That of lost attempts is in `Spending`."""

    unit: str
    """Unit of the amounts; empty for counts."""
    mean: Mean
    """Mean amount of a scored episode."""
    per_pass: float | None
    """Total amount divided by the number of successes; for money, the cost of a pass. None without a success."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRates:
    """Number of tool calls in the scored episodes, and shares of them; a share is None if no tool was called."""

    made: int
    error_rate: float | None
    invalid_rate: float | None
    redundant_rate: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Radar:
    """Five dimensions, each in [0, 1] and better when larger, over scored episodes of tasks with gold calls.

    Source: the dimensions are those of MCP-RADAR, arXiv:2505.16700; the formulas are in docs/evaluation.md.
    """

    tasks: int
    """Number of tasks with gold calls; the dimensions say nothing about the others."""
    accuracy: Mean
    """Share of successes."""
    selection: Mean
    """F1 between the tools that were called and those that gold calls."""
    parameters: Mean
    """Share of arguments that equal gold's, over the calls paired with a gold call."""
    efficiency: Mean
    """Gold calls per call made, at most 1; over successes only, since giving up is no economy."""
    speed: Mean
    """1 for no time, 1/2 for `REFERENCE_S` per gold call and user turn; over successes only."""
    first_error: Mean
    """Progress before the first wrong or missing call, as a share of the gold calls; not one of the five."""
    offered: Mean
    """Share of the tools of the gold calls that were ever on offer: the recall of retrieval; not one of the five."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    prompt_tokens: int
    completion_tokens: int
    cost: float
    """Cost of tools and models together."""
    tools: Mapping[str, Mapping[str, float]]
    """Figures by tool, as in `Usage`, summed."""
    models: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Time of all attempts by kind, lost attempts included, and the mean number of requests in flight."""

    seconds: Mapping[str, float]
    """Seconds by ``policy``, ``tool``, ``reset``, ``grading`` and ``harness``, summed over episodes that may run in
    parallel."""
    share: Mapping[str, float]
    """Share of each kind in the total. During all time but its own share, an episode's policy waits; likewise its
    tools."""
    policy_requests: float | None
    """Mean number of policy requests in flight while any attempt ran; None if none ran."""
    tool_calls: float | None
    """Mean number of tool calls in flight while any attempt ran; None if none ran."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """All figures of one run."""

    overall: Rate
    score: Mean
    """Mean score, partial credit included."""
    retries: Retries | None
    """Comparison of first-try and retried episodes; None if no counted episode was retried."""
    tasks: int
    """Number of tasks with an episode."""
    tasks_without_score: int
    """Tasks whose episodes were all lost: no figure says anything about them."""
    outcomes: Mapping[Outcome, int]
    """Number of episodes by outcome, only of outcomes that occurred, in the order of `Outcome`."""
    tool_calls: int
    tool_errors: int
    attempts: int
    """Number of attempts: more than there are episodes if some were repeated."""
    wall_s: float
    """Seconds in which at least one attempt was running; pauses between attempts and between resumed sessions do not
    count."""
    episode_s: float
    """Seconds summed over all attempts, which may have run in parallel."""
    times: Times
    breakdowns: Mapping[str, Mapping[str, Rate]]
    """Success rates by axis (``category``, ``difficulty``, ``server``, ..., ``tag``), then by value in natural order:
    see `axes_of`."""
    components: Mapping[str, float]
    """Mean of each component over the scored episodes that have it."""
    spent: Spending
    """Spending of all attempts, replaced ones included, since they were paid for."""
    pass_k: tuple[PassK, ...]
    """One entry for each k from 1 to the largest number of trials of a task; empty if no task has more than one."""
    effort: Mapping[str, Effort]
    """Effort by ``steps``, ``tool_calls``, ``prompt_tokens``, ``completion_tokens``, ``seconds`` and ``cost``; and by
    ``cost/NAME`` for each component of the cost of calls, if the environment's costs are known."""
    flake: Mapping[str, float] = field(default_factory=dict)
    """Chance that two trials end differently, for each task with several scored trials."""
    noise_floor: float | None = None
    """Largest difference that two runs of this policy reach in 95 % of cases; None if no task was repeated."""
    calls: CallRates | None = None
    """None if the calls were not examined."""
    radar: Radar | None = None
    """None if the calls were not examined, or no task has gold calls."""
    model_latency: Latency | None = None
    """Seconds of the agent's decisions; None if no model was asked or nothing was measured."""
    request_latency: Latency | None = None
    """Seconds of the requests to the model, without earlier attempts; None if nothing was measured."""
    first_token_latency: Latency | None = None
    """Seconds until the first token of a request; None if nothing was measured."""
    tool_latency: Latency | None = None
    """Seconds of tool calls; None if nothing was measured."""
    tokens_per_s: float | None = None
    """Tokens that the model wrote per second of its requests; None if no request was measured."""

    @property
    def score_bounds(self) -> Bounds | None:
        """Mean score over all episodes, whatever the lost ones would have scored; None without episodes."""
        return bounds_of(self.score.value, self.overall.scored, self.overall.episodes)
