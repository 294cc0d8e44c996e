"""A controller that gives the tasks different numbers of episodes, more where these are expected to teach more."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gymcp.agents.runner.trees.controller import GO_ON, GoOn, Independent, Played, Start, TreeBudget
from gymcp.errors import ConfigError
from gymcp.types import Task

FEWEST_EPISODES, MOST_EPISODES = 2, 128
"""Episodes that a task is given at least and at most, as published."""
UNKNOWN_RATE = 0.5
"""Expected success rate of a task that was never played."""


def expected_rate(solved: float, failed: float) -> float:
    """Expected success rate after so many episodes: the mean of a Beta distribution that starts with one of each.

    It is never 0 or 1, so no task is given up for good.
    """
    return (solved + 1.0) / (solved + failed + 2.0)


def group_value(rate: float, episodes: int) -> float:
    """[1 - p^N - (1-p)^N] p (1-p)^2: expected worth to the gradient of N episodes of a task with success rate p.

    The bracket is the chance that the group has both a success and a failure, so that comparing them says something;
    the factor is the authors' estimate of what such a group then improves.

    Source: arXiv:2509.25849 (Knapsack RL).
    """
    return (1.0 - rate**episodes - (1.0 - rate) ** episodes) * rate * (1.0 - rate) ** 2


def allocate_episodes(
    rates: Sequence[float], total: int, *, fewest: int = FEWEST_EPISODES, most: int = MOST_EPISODES
) -> list[int]:
    """[K] success rates -> [K] numbers of episodes that add up to `total` and have the largest sum of `group_value`.

    Each further episode goes to the task whose value it raises most. That is exact, because the rise falls with every
    episode that a task has; the authors solve the same problem by dynamic programming. Of equal tasks the one with
    fewer episodes comes first, then the earlier one.

    Raises ConfigError for a rate that is none, and for a total that the bounds do not allow.
    """
    if not 1 <= fewest <= most:
        raise ConfigError(
            f"allocation: at least {fewest} and at most {most} episodes of a task; give 1 <= fewest <= most"
        )
    if wrong := [rate for rate in rates if not 0.0 <= rate <= 1.0]:
        raise ConfigError(f"allocation: {wrong[0]!r:.80} is no success rate; give numbers from 0 to 1")
    if not fewest * len(rates) <= total <= most * len(rates):
        raise ConfigError(
            f"allocation: {total} episodes for {len(rates)} tasks, each of which gets {fewest} to {most}; give"
            f" {fewest * len(rates)} to {most * len(rates)} episodes, or other bounds"
        )
    counts = [fewest] * len(rates)
    waiting = [(-_rise(rate, fewest), fewest, place) for place, rate in enumerate(rates) if fewest < most]
    heapq.heapify(waiting)
    for _ in range(total - sum(counts)):
        _, count, place = heapq.heappop(waiting)
        counts[place] = count + 1
        if count + 1 < most:
            heapq.heappush(waiting, (-_rise(rates[place], count + 1), count + 1, place))
    return counts


def _rise(rate: float, episodes: int) -> float:
    """The value of one more episode: p^N (1-p) + (1-p)^N p times the factor, computed without a difference."""
    failure = 1.0 - rate
    return (rate**episodes * failure + failure**episodes * rate) * rate * failure**2


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocateEpisodes:
    """A controller that shares out the run's episodes among its tasks by their success rates so far; none branches.

    The run's trials times its tasks are the episodes. Nothing is drawn at random: the same rates give the same plan.

    Source: arXiv:2509.25849 (Knapsack RL), in the form of `allocate_episodes`. There the rate is that of the task's
    last episodes, and tasks that were all solved or all failed have rules of their own; here `expected_rate` is never
    0 or 1, so one rule is enough.
    """

    rates: Mapping[str, float] = field(default_factory=dict)
    """Expected success rate by the id of the task (`expected_rate`); a task that is not named has `UNKNOWN_RATE`."""
    fewest: int = FEWEST_EPISODES
    most: int = MOST_EPISODES

    def plan(self, tasks: Sequence[Task], budget: TreeBudget) -> tuple[Start, ...]:
        """A number of trees, each of one episode, for every task; together they are the run's episodes.

        Raises ConfigError for a rate that is none, and for a total that `fewest` and `most` do not allow.
        """
        rates = [self.rates.get(task.id, UNKNOWN_RATE) for task in tasks]
        counts = allocate_episodes(rates, budget.trials * len(tasks), fewest=self.fewest, most=self.most)
        return tuple(Start(task=task.id, trees=count) for task, count in zip(tasks, counts, strict=True))

    def after(self, played: Played) -> GoOn:
        """Always the next step. The runner plays such episodes without asking."""
        return GO_ON


NEVER_BRANCH = (Independent, AllocateEpisodes)
"""Controllers whose episodes never branch, so the runner does not ask them after a step."""
