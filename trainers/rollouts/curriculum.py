"""Which tasks an iteration trains on: a function of the recipe and the iteration's number alone."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.types import Task

_DEMONSTRATED = 500_000
"""Number of the first task that is shown; those that are practised are numbered from 0."""


def practised(env: LoadedEnv, recipe: Recipe, iteration: int) -> list[tuple[Task, int]]:
    """The tasks of an iteration, counted from 0, each with the number of its first trial.

    Of an environment with a fixed suite tasks come back, with further trials, when all have had their turn.
    """
    first = iteration * recipe.rollout.groups
    return [_at(env, recipe, place) for place in range(first, first + recipe.rollout.groups)]


def _at(env: LoadedEnv, recipe: Recipe, place: int) -> tuple[Task, int]:
    if env.spec.more_tasks is None:
        tasks = _fixed(env)
        again, at = divmod(place, len(tasks))
        return _shuffled(tasks, recipe.seed, again)[at], again * recipe.rollout.episodes
    size = len(_block(env, recipe, 0, recipe.tasks.families))
    number, at = divmod(place, size)
    return _shuffled(_block(env, recipe, number, recipe.tasks.families), recipe.seed, number)[at], 0


def demonstrated_tasks(env: LoadedEnv, recipe: Recipe) -> list[Task]:
    """The tasks whose gold is shown in the warm start: others than those that are practised, where there are others."""
    wanted = recipe.warm_start.tasks
    if env.spec.more_tasks is None:
        return _shuffled(_fixed(env), recipe.seed, 0)[:wanted]
    found: list[Task] = []
    number = _DEMONSTRATED
    while len(found) < wanted:
        found += _block(env, recipe, number, recipe.warm_start.families or recipe.tasks.families)
        number += 1
    return found[:wanted]


def held_out(env: LoadedEnv, recipe: Recipe, split: str, most: int | None = None) -> list[Task]:
    """The tasks of a test split, at most `most` or as the recipe says, spread over families and levels.

    The families are those of the evaluation, else those that are practised; a split that has none of them, such as one
    of other families, is looked at with its own. A fixed suite without that split gives what it does not train on, or
    all of it where it does not tell. Raises ConfigError for a split that makes no task.
    """
    most = recipe.evaluation.tasks if most is None else most
    if env.spec.more_tasks is None:
        of_split = [task for task in env.suite.tasks if task.split == split]
        others = [task for task in env.suite.tasks if task.split != "train"]
        return _shuffled(of_split or others or env.suite.tasks, recipe.seed, -1)[:most]
    found: list[Task] = []
    number = 0
    while len(found) < most:
        found += _test_block(env, recipe, split, number)
        number += 1
    return found[:most]


def for_tests_alone(env: LoadedEnv, recipe: Recipe) -> frozenset[str]:
    """The tasks that must neither be practised nor shown: the suite's and the recipe's test tasks."""
    trained = frozenset(task.id for task in _fixed(env)) if env.spec.more_tasks is None else frozenset()
    rule = recipe.evaluation
    most = max(rule.tasks, rule.final_tasks)
    tested = [task.id for split in {*rule.splits, *rule.final_splits} for task in held_out(env, recipe, split, most)]
    return frozenset([*tested, *(task.id for task in env.suite.tasks if task.split != "train")]) - trained


def _test_block(env: LoadedEnv, recipe: Recipe, split: str, number: int) -> list[Task]:
    """One task of each kind."""
    assert env.spec.more_tasks is not None
    rule = recipe.evaluation
    levels = rule.levels or recipe.tasks.levels or None
    for families in (rule.families or recipe.tasks.families or None, None):
        if tasks := list(env.spec.more_tasks(split, families=families, levels=levels, count=1, first=number)):
            return tasks
    raise ConfigError(f"environment '{env.spec.name}': split '{split}' has no task of the recipe's levels")


def _block(env: LoadedEnv, recipe: Recipe, number: int, families: Sequence[str]) -> list[Task]:
    """One task of each kind."""
    assert env.spec.more_tasks is not None
    levels = recipe.tasks.levels or None
    tasks = list(env.spec.more_tasks("train", families=families or None, levels=levels, count=1, first=number))
    if not tasks:
        raise ConfigError(f"environment '{env.spec.name}': makes no task for the recipe's families and levels")
    return tasks


def _fixed(env: LoadedEnv) -> list[Task]:
    return [task for task in env.suite.tasks if task.split == "train"] or list(env.suite.tasks)


def _shuffled(tasks: Sequence[Task], seed: int, number: int) -> list[Task]:
    mixed = list(tasks)
    random.Random(f"{seed}-{number}").shuffle(mixed)
    return mixed
