"""Episodes of ``gymcp train --ray`` as a node plays them: the trained model stays with the driver, which samples."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymcp.agents.strategies.budgets import RunBudget
from gymcp.aio import hold_open
from gymcp.cli.evaluation.cluster.node import enter_folder
from gymcp.cli.machine.clean import remove_orphans
from gymcp.envs.audit.fingerprint import env_digest, hash_cassettes, list_dev_sources, suite_digest
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.scale.worker import LeasedJobs, OpenedPlay
from gymcp.trainers.recipe.agent import RolloutAgent, load_rollout_agent
from gymcp.trainers.recipe.environment import digest_grader, wrap_environment
from gymcp.trainers.recipe.recipe import Recipe
from gymcp.trainers.rollouts.playing import LocalPlayer, PlaySettings
from gymcp.trainers.rollouts.recorded_demonstrations import load_shown_actions
from gymcp.types import Json, Sampled, Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class TextQuestion:
    """Asks for the `TextInterface` of the trained model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleQuestion:
    """Asks for a sample of the trained model."""

    settings: PlaySettings
    """Settings of the episode."""
    prompt_ids: tuple[int, ...]
    sampling: Sampling


class AskedPolicy:
    """The policy that is trained, on a node: the driver samples."""

    def __init__(self, ask: Callable[[Any], Coroutine[Any, Any, Any]], settings: PlaySettings) -> None:
        self._ask, self._settings = ask, settings

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        question = SampleQuestion(settings=self._settings, prompt_ids=tuple(prompt_ids), sampling=sampling)
        sampled: Sampled = await self._ask(question)
        return sampled


@contextlib.contextmanager
def open_play(recipe: Recipe, folder: Path, runner: asyncio.Runner) -> Iterator[OpenedPlay]:
    """Check the recipe's environment and agent on this node. `folder`: working folder of the driver.

    Raises UsageError.
    """
    enter_folder(folder)
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
        yield OpenedPlay(config=describe_run(recipe, env, agent), tasks=tasks, budget=RunBudget(), play=play)


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
