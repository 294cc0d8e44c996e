"""Episodes of ``gymcp train --ray`` as a node plays them: the trained model stays with the driver, which samples."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gymcp.agents.strategies.budgets import RunBudget
from gymcp.aio import hold_open
from gymcp.cli.machine.clean import remove_orphans
from gymcp.envs.audit.fingerprint import env_digest, hash_cassettes, list_dev_sources, suite_digest
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.scale.copies.records import PlacedFiles
from gymcp.scale.plan import NodeGroup
from gymcp.scale.questions import AskedPolicy
from gymcp.scale.worker import LeasedJobs, OpenedPlay
from gymcp.trainers.recipe.agent import RolloutAgent, load_rollout_agent
from gymcp.trainers.recipe.environment import digest_grader, wrap_environment
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.playing import LocalPlayer, PlaySettings
from gymcp.trainers.rollouts.recorded_demonstrations import load_shown_actions
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuestion:
    """Asks for the `TextInterface` of the trained model."""


@contextlib.contextmanager
def open_play(recipe: Recipe, group: NodeGroup, placed: PlacedFiles, runner: asyncio.Runner) -> Iterator[OpenedPlay]:
    """Check the recipe's environment and agent on this node, which is of that group of the plan.

    `placed`: files of the driver that the recipe names. Raises UsageError.
    """
    placed.enter()
    recipe = placed.locate(recipe)
    if group.concurrency is not None:
        recipe = replace(recipe, rollout=replace(recipe.rollout, concurrency=group.concurrency))
    env = wrap_environment(recipe, load_named(recipe.env))
    sandbox = get_sandbox(recipe.rollout.sandbox)
    sandbox.check()
    agent = load_rollout_agent(recipe)
    shown = load_shown_actions(env, recipe)
    remove_orphans()
    with hold_open(runner, open_warm_sandbox(sandbox)) as warm_sandbox:
        player = LocalPlayer(env=env, recipe=recipe, sandbox=warm_sandbox, agent=agent, shown=shown)

        async def play(jobs: LeasedJobs) -> None:
            assert isinstance(jobs.settings, PlaySettings)
            text = await jobs.ask(TextQuestion())
            await player.play(text, AskedPolicy(jobs.ask, jobs.settings), jobs.settings, jobs, jobs.keep)

        tasks = {task.id: task for task in env.suite.tasks}
        config = placed.restore(describe_run(recipe, env, agent))
        yield OpenedPlay(config=config, tasks=tasks, budget=RunBudget(), play=play)


def describe_run(recipe: Recipe, env: LoadedEnv, agent: RolloutAgent | None) -> Mapping[str, Json]:
    """Everything beside the recipe that scores depend on. Raises ConfigError."""
    return {
        "env_digest": env_digest(env),
        "suite_digest": suite_digest(env.suite),
        "cassettes": hash_cassettes(env),
        "dev_sources": list_dev_sources(env),
        "grader_digest": digest_grader(recipe),
        **(agent.config() if agent is not None else {}),
    }
