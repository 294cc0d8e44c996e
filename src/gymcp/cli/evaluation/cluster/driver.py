"""A run of ``gymcp eval --ray`` as its driver sees it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.run import PlayedElsewhere
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.cli.evaluation.cluster.node import open_play
from gymcp.cli.evaluation.eval_run import PreparedRun
from gymcp.envs.catalog import source_of
from gymcp.scale.distribution import DistributionSettings, distribute
from gymcp.scale.ray_cluster import RayPool, RunToOpen, connect_ray


@contextlib.contextmanager
def open_cluster(prepared: PreparedRun) -> Iterator[PlayedElsewhere]:
    """Plays jobs on the nodes of the cluster of ``--ray``, all of which have opened the run. Raises ConfigError."""
    config = prepared.config
    settings = DistributionSettings(
        env=prepared.env.spec.name,
        concurrency=prepared.schedule.concurrency,
        known_tasks={task.id: task for task in prepared.env.suite.tasks},
        max_losses=prepared.schedule.max_attempts,
    )
    on_nodes = replace(
        config,
        env=source_of(config.env),
        concurrency=prepared.schedule.concurrency,
        out=None,
        resume=False,
        ray=None,
    )
    run = RunToOpen(open_play=partial(open_play, on_nodes, Path.cwd()), config=prepared.recorded)
    with connect_ray(config.ray or "auto"):
        pool = RayPool(run)
        asyncio.run(pool.open_first())

        def play(
            jobs: Sequence[Job], on_rollout: Callable[[Rollout, bool], None], budget: RunBudget
        ) -> Coroutine[None, None, None]:
            return distribute(pool, jobs, on_rollout, budget, settings)

        yield PlayedElsewhere(play=play)
