"""The plain curriculum: the recipe's tasks one after the other, whatever happens in their episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.envs.spec import LoadedEnv
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState, GroupResult, PlannedGroup
from gymcp.trainers.rollouts.curriculum import tasks_in_sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialCurriculum:
    """Tasks in the order of `tasks_in_sequence`."""

    env: LoadedEnv
    recipe: Recipe

    def plan(self, state: CurriculumState, count: int) -> tuple[list[PlannedGroup], CurriculumState]:
        """The groups at the next places of the sequence."""
        tasks = tasks_in_sequence(self.env, self.recipe, state.groups, count)
        planned = [PlannedGroup(task=task, first_trial=first) for task, first in tasks]
        return planned, replace(state, groups=state.groups + count)

    def observe(self, state: CurriculumState, results: Sequence[GroupResult]) -> CurriculumState:
        """The state as it is."""
        return state
