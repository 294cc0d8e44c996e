"""A training of ``gymcp train --ray`` as its driver sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from gymcp.cli.evaluation.cluster.driver import say
from gymcp.cli.evaluation.cluster.placement import describe_plan, load_plan, place_groups
from gymcp.cli.training.cluster.needed_files import find_needed_files
from gymcp.cli.training.cluster.node import describe_run, open_play
from gymcp.cli.training.cluster.player import open_player
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.scale.copies.collect import FileCollector
from gymcp.scale.distribution import DistributionSettings
from gymcp.scale.plan import check_learner
from gymcp.scale.ray_calls import connect_ray, find_own_node, list_cluster
from gymcp.scale.ray_cluster import RayPool, RunToOpen
from gymcp.trainers.recipe.agent import load_rollout_agent
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.run.training_run import OpenPlayer

NODE_CONCURRENCY = 64
"""Episodes at a time on a node if the recipe names no number."""


@contextlib.contextmanager
def open_cluster(address: str, plan_file: Path | None, recipe: Recipe, env: LoadedEnv) -> Iterator[OpenPlayer]:
    """Opens a player on the nodes of the cluster of ``--ray``, all of which have opened the run. Raises ConfigError."""
    plan = load_plan(plan_file)
    if plan.policy is not None or plan.judge or any(group.policy for group in plan.group):
        raise ConfigError(
            f"{describe_plan(plan_file)}: places a policy or a judge, and the model of a training is the driver's: keep"
            " its groups, without policy, and its learner"
        )
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
    collector = FileCollector()
    files = find_needed_files(recipe, env, collector)
    with connect_ray(address):
        nodes = list_cluster()
        find_group = place_groups(plan, plan_file, recipe.env, nodes)
        check_learner(plan, describe_plan(plan_file), nodes, find_own_node())
        for note in collector.notes:
            say(note)
        run = RunToOpen(open_play=partial(open_play, recipe), config=config, files=files, find_group=find_group)
        pool = RayPool(run, say=say)
        asyncio.run(pool.open_first())
        yield partial(open_player, pool, settings)
