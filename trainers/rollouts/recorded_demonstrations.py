"""Demonstrations from a recorded run, of any agent or policy."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.store.rows import EpisodeRow
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import reserved_tasks, tasks_in_sequence
from gymcp.types import Action, Trajectory


def select_demonstrations(env: LoadedEnv, recipe: Recipe) -> list[Trajectory]:
    """At most `warm_start.tasks` good episodes of the run `warm_start.run`, drawn by the recipe's seed.

    Good episodes score `warm_start.min_score` or more, have only usable actions, and are of a task that is not
    reserved for tests. They come without their tokens, because another model may have drawn them: the model learns the
    actions in its own form. Raises ConfigError if the run has no good episode, StoreError if there is no run.
    """
    rule = recipe.warm_start
    reserved = reserved_tasks(env, recipe)
    with TrajectoryStore.open(Path(rule.run)) as store:
        rows = sorted(store.summaries(), key=lambda row: (row.task, row.trial))
        here = [row for row in rows if row.env == env.spec.name]
        able = [row for row in here if row.score is not None and row.score >= rule.min_score and row.steps]
        free = [row for row in able if row.task not in reserved]
        random.Random(f"{recipe.seed}-shown").shuffle(free)
        records = _load_usable(store, free, rule.tasks)
    if not records:
        raise ConfigError(
            f"warm start: run '{rule.run}' has nothing to show: of {len(rows)} episodes {len(here)} are of"
            f" '{env.spec.name}', {len(able)} of these scored {rule.min_score:g} or more, {len(free)} of these are of"
            " tasks that are not for tests alone, and in none of these every action was usable"
        )
    return records


def load_shown_actions(env: LoadedEnv, recipe: Recipe) -> dict[str, tuple[Action, ...]]:
    """Id of each training task -> the actions of its first solved episode in the run `rollout.demonstrations`.

    Episodes with an action that was not usable are passed over. Empty if the recipe names no such run. Raises
    ConfigError if a training task has no such episode, StoreError if there is no run.
    """
    if not recipe.rollout.demonstrations:
        return {}
    run = recipe.rollout.demonstrations
    count = recipe.learn.iterations * recipe.rollout.groups
    tasks = dict.fromkeys(task.id for task, _ in tasks_in_sequence(env, recipe, 0, count))
    found: dict[str, tuple[Action, ...]] = {}
    with TrajectoryStore.open(Path(run)) as store:
        rows = sorted(store.summaries(), key=lambda row: (row.task, row.trial))
        for row in rows:
            if row.env != env.spec.name or row.task in found or row.task not in tasks or not row.success:
                continue
            for record in _load_usable(store, [row], 1):
                found[row.task] = tuple(step.action for step in record.steps)
    if missing := [task for task in tasks if task not in found]:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.demonstrations '{run}' has no solved episode of '{env.spec.name}' with"
            f" usable actions for {len(missing)} of {len(tasks)} training tasks, such as '{missing[0]}'; record one, as"
            " with gymcp eval --agent oracle, or train on fewer tasks (tasks.pool)"
        )
    return found


def _load_usable(store: TrajectoryStore, rows: Iterable[EpisodeRow], most: int) -> list[Trajectory]:
    """The first `most` records whose actions were all usable."""
    records: list[Trajectory] = []
    for row in rows:
        if len(records) == most:
            break
        record = store.load(row.id, tokens=False)
        if all(step.valid for step in record.steps):
            records.append(record)
    return records
