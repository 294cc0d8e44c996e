"""Groups under way, as checkpoints and logs hold them: their tasks are found again by their ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curricula.choose import tasks_so_far
from gymcp.trainers.rollouts.curricula.protocol import CurriculumState, PlannedGroup
from gymcp.types import Json, Task


def to_json(groups: Sequence[PlannedGroup]) -> tuple[dict[str, Json], ...]:
    """The groups without the content of their tasks."""
    return tuple({"task": group.task.id, "first_trial": group.first_trial, "kind": group.kind} for group in groups)


def restore_groups(
    env: LoadedEnv, recipe: Recipe, state: CurriculumState, stored: Sequence[Mapping[str, Json]]
) -> list[PlannedGroup]:
    """The inverse of `to_json`. Raises ConfigError for a task that was not planned before that state."""
    tasks = find_tasks(env, recipe, state, {str(each["task"]) for each in stored})
    return [
        PlannedGroup(task=tasks[each["task"]], first_trial=int(each["first_trial"]), kind=str(each["kind"]))
        for each in stored
    ]


def find_tasks(env: LoadedEnv, recipe: Recipe, state: CurriculumState, ids: set[str]) -> dict[str, Task]:
    """The planned tasks with these ids. Raises ConfigError if one is missing."""
    found: dict[str, Task] = {}
    for task in tasks_so_far(env, recipe, state) if ids else ():
        if task.id in ids:
            found[task.id] = task
        if len(found) == len(ids):
            return found
    if missing := sorted(ids - set(found)):
        raise ConfigError(
            f"training '{recipe.name}': the run has episodes of task '{missing[0]}', which '{recipe.env}' no longer"
            " makes; continue it with the environment that it was started with"
        )
    return found
