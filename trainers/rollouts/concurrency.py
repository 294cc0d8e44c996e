"""The number of episodes of a training run that run at a time, if its recipe names none."""

from __future__ import annotations

from dataclasses import replace

from gymcp.agents.programs.settings import ProgramSettings
from gymcp.agents.runner.concurrency import (
    ConcurrencyChoice,
    choose_concurrency,
    describe_load,
    keep_given,
    limit_by_slots,
    limit_by_vllm,
)
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.machine_limits import read_machine_limits
from gymcp.trainers.recipe.agent import RolloutAgent
from gymcp.trainers.recipe.recipe import Recipe


def choose_rollout_concurrency(recipe: Recipe, env: LoadedEnv, agent: RolloutAgent | None) -> ConcurrencyChoice:
    """``rollout.concurrency``, or a number by the machine and the engine.

    With ``rollout.staleness`` at least a group, whose first episodes would else go stale while the last ones wait.
    """
    rollout = recipe.rollout
    if rollout.concurrency:
        return keep_given(rollout.concurrency)
    engine = limit_by_vllm() if rollout.engine == "vllm" else limit_by_slots(rollout.slots, "rollout.slots")
    load = describe_load(
        env,
        forks=rollout.sandbox == "bwrap",
        waits_for_model=True,
        program=agent if isinstance(agent, ProgramSettings) else None,
        limits=(engine,),
        min_episodes=rollout.episodes if rollout.staleness else 1,
    )
    return choose_concurrency(read_machine_limits(), load)


def fill_concurrency(recipe: Recipe, choice: ConcurrencyChoice) -> Recipe:
    """The recipe with that number of episodes at a time."""
    return replace(recipe, rollout=replace(recipe.rollout, concurrency=choice.episodes))
