"""A run of ``gymcp eval --ray`` as a node plays it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Coroutine, Iterator
from pathlib import Path

from gymcp.agents.runner.scheduler import run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.eval_run import open_players, prepare_run
from gymcp.scale.worker import LeasedJobs, OpenedPlay


@contextlib.contextmanager
def open_play(config: EvalConfig, folder: Path, runner: asyncio.Runner) -> Iterator[OpenedPlay]:
    """Check the config on this node and open its models. `folder`: working folder of the driver.

    Raises UsageError, EnvInfraError.
    """
    enter_folder(folder)
    prepared = prepare_run(config)
    budget = RunBudget(config.max_cost)
    with open_players(runner, prepared) as (env, agents):

        def play(jobs: LeasedJobs) -> Coroutine[None, None, None]:
            return run_jobs(env, prepared.sandbox, agents, jobs, prepared.schedule, jobs.keep, budget)

        tasks = {task.id: task for task in env.suite.tasks}
        yield OpenedPlay(config=prepared.recorded, tasks=tasks, budget=budget, play=play)


def enter_folder(folder: Path) -> None:
    """Work in the driver's folder if this node has it, for relative paths of options; the process is the node's own."""
    if folder.is_dir():
        os.chdir(folder)
