"""A run of ``gymcp eval --ray`` as a node plays it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.scheduler import JobSource, run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.eval_run import open_players, prepare_run
from gymcp.scale.worker import OpenedPlay


@contextlib.contextmanager
def open_play(config: EvalConfig, folder: Path, runner: asyncio.Runner) -> Iterator[OpenedPlay]:
    """Check the config on this node and open its models. `folder`: working folder of the driver.

    Raises UsageError, EnvInfraError.
    """
    if folder.is_dir():
        os.chdir(folder)  # relative paths of options; the process is the node's own
    prepared = prepare_run(config)
    budget = RunBudget(config.max_cost)
    with open_players(runner, prepared) as (env, agents):

        def play(source: JobSource, on_rollout: Callable[[Rollout, bool], None]) -> Coroutine[None, None, None]:
            return run_jobs(env, prepared.sandbox, agents, source, prepared.schedule, on_rollout, budget)

        tasks = {task.id: task for task in env.suite.tasks}
        yield OpenedPlay(config=prepared.recorded, tasks=tasks, budget=budget, play=play)
