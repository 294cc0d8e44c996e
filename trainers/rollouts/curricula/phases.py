"""XRPO: the episodes of an iteration in phases, each shared out by what the scores of earlier ones leave uncertain."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import stdtrit

from gymcp.trainers.recipe.branching import find_first_episodes
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import PlannedGroup

PHASES = 3
"""Phases of an iteration, as in the paper."""
CONFIDENCE = 0.95
"""Confidence of the interval whose width is to fall."""


def half_width(deviation: float, episodes: int) -> float:
    """t s / sqrt(n): half of Student's confidence interval of the mean of n scores with deviation s."""
    quantile = float(stdtrit(episodes - 1, (1 + CONFIDENCE) / 2))
    return quantile * deviation / math.sqrt(episodes)


def task_priority(deviation: float, episodes: int, total: int, weight: float) -> float:
    """h(n) - h(n + 1) + weight sqrt(log(1 + T) / n): how much one more episode of a task narrows the interval of its
    mean score, and a bonus while it has few of the T episodes of all tasks.

    The deviation stays as it is, and one without two scores is 0. The priority falls with every episode.

    Source: arXiv:2510.06672 (XRPO).
    """
    bonus = weight * math.sqrt(math.log1p(total) / max(episodes, 1))
    return half_width(deviation, episodes) - half_width(deviation, episodes + 1) + bonus if deviation else bonus


def share_episodes(scores: Sequence[Sequence[float]], count: int, weight: float) -> list[int]:
    """[K] scores of each task so far -> [K] further episodes, `count` in all, one after the other to the task with the
    largest `task_priority`.

    Of equal tasks the one with fewer episodes comes first, then the earlier one.
    """
    total = sum(map(len, scores))
    deviations = [statistics.stdev(own) if len(own) > 1 else 0.0 for own in scores]
    waiting = [
        (-task_priority(deviation, len(own), total, weight), len(own), place)
        for place, (deviation, own) in enumerate(zip(deviations, scores, strict=True))
    ]
    heapq.heapify(waiting)
    further = [0] * len(scores)
    for _ in range(count):
        _, episodes, place = waiting[0]
        further[place] += 1
        then = task_priority(deviations[place], episodes + 1, total, weight)
        heapq.heapreplace(waiting, (-then, episodes + 1, place))
    return further


def begin_phases(recipe: Recipe, groups: Sequence[PlannedGroup]) -> list[PlannedGroup]:
    """The groups with the episodes of the first phase.

    One of them may get all episodes of the iteration, so the numbers of trials leave room for as many.
    """
    first = find_first_episodes(recipe)
    return [replace(each, first_trial=each.first_trial * recipe.rollout.groups, episodes=first) for each in groups]


def later_phases(recipe: Recipe, groups: int) -> list[int]:
    """Episodes of each phase after the first, of so many groups: as equal as can be."""
    left, phases = groups * (recipe.rollout.episodes - find_first_episodes(recipe)), PHASES - 1
    return [(left + phase) // phases for phase in reversed(range(phases))]


def extend_groups(
    groups: Sequence[PlannedGroup], counts: Sequence[int]
) -> tuple[list[PlannedGroup], list[PlannedGroup]]:
    """[K] groups, [K] further episodes -> groups of the further episodes alone, and [K] groups with all."""
    further = [
        replace(group, first_trial=group.first_trial + group.episodes, episodes=count)
        for group, count in zip(groups, counts, strict=True)
        if count
    ]
    return further, [
        replace(group, episodes=group.episodes + count) for group, count in zip(groups, counts, strict=True)
    ]
