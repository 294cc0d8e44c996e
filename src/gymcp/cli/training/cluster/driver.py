"""A training of ``gymcp train --ray`` as its driver sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from gymcp.cli.training.cluster.node import describe_run, open_play
from gymcp.cli.training.cluster.player import open_player
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.scale.distribution import DistributionSettings
from gymcp.scale.ray_cluster import RayPool, RunToOpen, connect_ray
from gymcp.trainers.recipe.agent import load_rollout_agent
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.training_run import OpenPlayer

NODE_CONCURRENCY = 64
"""Episodes at a time on a node if the recipe names no number."""


@contextlib.contextmanager
def open_cluster(address: str, recipe: Recipe, env: LoadedEnv) -> Iterator[OpenPlayer]:
    """Opens a player on the nodes of the cluster of ``--ray``, all of which have opened the run. Raises ConfigError."""
    if recipe.reward.judge:
        raise ConfigError(
            f"--ray: recipe '{recipe.name}' names reward.judge, whose answers are kept in the run's folder, which nodes"
            " do not have; take it out, or train without --ray"
        )
    if not recipe.rollout.concurrency:
        recipe = replace(recipe, rollout=replace(recipe.rollout, concurrency=NODE_CONCURRENCY))
    config = describe_run(recipe, env, load_rollout_agent(recipe))
    settings = DistributionSettings(
        env=env.spec.name,
        concurrency=recipe.rollout.concurrency,
        known_tasks={task.id: task for task in env.suite.tasks},
    )
    with connect_ray(address):
        pool = RayPool(RunToOpen(open_play=partial(open_play, recipe, Path.cwd()), config=config))
        asyncio.run(pool.open_first())
        yield partial(open_player, pool, settings)
