"""Episodes of a recorded run that a policy may be shown, whoever played them."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.store.rows import EpisodeRow
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.curriculum import for_tests_alone
from gymcp.types import Trajectory


def recorded_episodes(env: LoadedEnv, recipe: Recipe) -> list[Trajectory]:
    """At most `warm_start.tasks` of the run's good episodes, drawn by the recipe's seed.

    Good: with `warm_start.min_score` or more, every action usable, and of a task that nothing is tested with. Without
    their tokens, which another model may have drawn: what is learnt is how the pupil would have written the actions.
    Raises ConfigError where the run has none, StoreError where there is no run.
    """
    rule = recipe.warm_start
    kept = for_tests_alone(env, recipe)
    with TrajectoryStore.open(Path(rule.run)) as store:
        rows = sorted(store.summaries(), key=lambda row: (row.task, row.trial))
        here = [row for row in rows if row.env == env.spec.name]
        able = [row for row in here if row.score is not None and row.score >= rule.min_score and row.steps]
        free = [row for row in able if row.task not in kept]
        random.Random(f"{recipe.seed}-shown").shuffle(free)
        found = _usable(store, free, rule.tasks)
    if not found:
        raise ConfigError(
            f"warm start: run '{rule.run}' has nothing to show: of {len(rows)} episodes {len(here)} are of"
            f" '{env.spec.name}', {len(able)} of these scored {rule.min_score:g} or more, {len(free)} of these are of"
            " tasks that are not for tests alone, and in none of these every action was usable"
        )
    return found


def _usable(store: TrajectoryStore, rows: Iterable[EpisodeRow], most: int) -> list[Trajectory]:
    found: list[Trajectory] = []
    for row in rows:
        if len(found) == most:
            break
        record = store.load(row.id, tokens=False)
        if all(step.valid for step in record.steps):
            found.append(record)
    return found
