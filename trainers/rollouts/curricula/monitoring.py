"""AEPO: one episode of each task is played first, and its entropies decide how many others begin anew or branch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gymcp.trainers.recipe.branching import MONITORED, RULES
from gymcp.trainers.recipe.entropy_branching import (
    ENTROPY_TOKENS,
    answers_result,
    count_first_episodes,
    measure_answer,
)
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import PlannedGroup
from gymcp.types import Trajectory


def count_leaves(recipe: Recipe) -> int:
    """Episodes of a task, branches included: ``rollout.episodes`` trees of ``max_episodes`` on average."""
    rollout = recipe.rollout
    return rollout.episodes * (rollout.branching.max_episodes or RULES[MONITORED].episodes)


def begin_monitoring(recipe: Recipe, groups: Sequence[PlannedGroup]) -> list[PlannedGroup]:
    """The groups with the one episode that is measured, which does not branch.

    All episodes of a task may be first ones, so the numbers of trials leave room for as many.
    """
    room = count_leaves(recipe) // recipe.rollout.episodes
    return [replace(each, first_trial=each.first_trial * room, episodes=1) for each in groups]


def plan_after_monitoring(
    recipe: Recipe, groups: Sequence[PlannedGroup], records: Sequence[Trajectory], vocabulary: int
) -> tuple[dict[int, list[PlannedGroup]], list[PlannedGroup]]:
    """[K] groups of one episode, their records -> further groups by the most episodes that each of their trees may
    have, and [K] groups with all first episodes.

    The branches of a task are shared out evenly among its further episodes. `vocabulary`: of the model.
    """
    played = {(record.task, record.trial): record for record in records}
    further: dict[int, list[PlannedGroup]] = {}
    extended = []
    for group in groups:
        first = _count_first(recipe, played.get((group.task.id, group.first_trial)), vocabulary)
        extended.append(replace(group, episodes=first))
        trial = group.first_trial + 1
        for episodes, limit in share_branches(count_leaves(recipe) - first, first - 1):
            further.setdefault(limit, []).append(replace(group, first_trial=trial, episodes=episodes))
            trial += episodes
    return further, extended


def share_branches(branches: int, trees: int) -> list[tuple[int, int]]:
    """(number of trees, most episodes of each), so that all of them have so many branches together."""
    share, rest = divmod(branches, trees)
    return [(count, limit) for count, limit in ((rest, share + 2), (trees - rest, share + 1)) if count]


def _count_first(recipe: Recipe, record: Trajectory | None, vocabulary: int) -> int:
    """First episodes of a task whose measured episode this is; None: it was lost."""
    given = recipe.rollout.branching
    tokens = given.tokens or ENTROPY_TOKENS
    steps = record.steps if record is not None else ()
    measured = [(step, measure_answer(step, vocabulary=vocabulary, tokens=tokens)) for step in steps]
    known = [(step, entropy) for step, entropy in measured if entropy is not None]
    first = known[0][1] if known else 0.0
    later = [entropy for step, entropy in known[1:] if answers_result(step)]
    return count_first_episodes(first, later, count_leaves(recipe), sensitivity=given.sensitivity)
