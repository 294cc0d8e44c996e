"""A run of ``gymcp eval --ray`` as a node plays it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import replace
from typing import Any

from gymcp.agents.runner.scheduler import run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.eval_run import open_players, prepare_run
from gymcp.cli.policy_options import OpenedModel
from gymcp.scale.copies.records import PlacedFiles
from gymcp.scale.plan import NodeGroup
from gymcp.scale.questions import AskedPolicy
from gymcp.scale.worker import LeasedJobs, OpenedPlay


@contextlib.contextmanager
def open_play(
    config: EvalConfig, opened: OpenedModel | None, group: NodeGroup, placed: PlacedFiles, runner: asyncio.Runner
) -> Iterator[OpenedPlay]:
    """Check the config on this node, which is of that group of the plan, and open its models.

    `opened`: the agent's model without its policy, if the driver answers for it. `placed`: files of the driver that the
    config names. Raises UsageError, EnvInfraError.
    """
    placed.enter()
    lines: list[Callable[[Any], Coroutine[Any, Any, Any]]] = []  # the line to the driver, once there are jobs

    async def ask(question: Any) -> Any:
        return await lines[0](question)

    if opened is not None:
        opened = replace(opened, model=replace(opened.model, policy=AskedPolicy(ask)))
    here = placed.locate(config)
    here = replace(here, concurrency=group.concurrency or here.concurrency, policy=group.policy or here.policy)
    prepared = prepare_run(here, opened)
    recorded = placed.restore(prepared.recorded)
    if group.policy:
        recorded = {**recorded, "policy": config.policy}
    prepared = replace(prepared, judge=None)  # the driver asks it
    budget = RunBudget(config.max_cost)
    with open_players(runner, prepared) as (env, agents):

        def play(jobs: LeasedJobs) -> Coroutine[None, None, None]:
            lines.append(jobs.ask)
            return run_jobs(env, prepared.sandbox, agents, jobs, prepared.schedule, jobs.keep, budget)

        tasks = {task.id: task for task in env.suite.tasks}
        yield OpenedPlay(config=recorded, tasks=tasks, budget=budget, play=play)
