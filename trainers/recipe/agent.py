"""The agents that a recipe names: how the trained model plays its episodes, and which agent demonstrates."""

from __future__ import annotations

from pathlib import Path

from gymcp.agents.programs.agent import check_program
from gymcp.agents.programs.settings import ProgramSettings, is_program, make_program
from gymcp.agents.strategies.react import ReactSettings
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.agents.strategies.user_agents import UserAgent, load_agent, make_user_agents
from gymcp.errors import ConfigError
from gymcp.protocols import AgentFactory
from gymcp.trainers.recipe.recipe import Recipe

REACT = "react"


RolloutAgent = UserAgent | ProgramSettings
"""An agent of the user, or a program."""


def load_rollout_agent(recipe: Recipe) -> RolloutAgent | None:
    """The recipe's agent; None for react. The file of an agent of the user is run, a program is not.

    Raises ConfigError if there is none, if it takes no model (only the tokens of the trained model can be learnt from),
    or if a program cannot be shown what it needs; SandboxUnavailable if a program cannot be confined on this machine.
    """
    name = recipe.rollout.agent
    if name in ("", REACT):
        return None
    if is_program(name):
        return _load_program(recipe)
    agent = load_agent(name)
    if agent is None:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.agent is '{name}': no such agent; have react, FILE.py:NAME, or"
            " cmd:PROGRAM ARGS"
        )
    if not agent.takes_model:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.agent is '{name}', which takes task and seed; training needs the tokens"
            " of the trained model: make it a function of model and settings"
        )
    return agent


def _load_program(recipe: Recipe) -> ProgramSettings:
    """The program that the recipe names, with its settings. Raises ConfigError, SandboxUnavailable."""
    rollout = recipe.rollout
    try:
        program = make_program(
            rollout.agent,
            sandbox=rollout.agent_sandbox,
            stdin=rollout.agent_stdin,
            mounts=tuple(map(Path, rollout.agent_mounts)),
            env=recipe.env,
        )
        check_program(program)
    except ConfigError as error:
        raise ConfigError(f"recipe '{recipe.name}': rollout.agent: {error}") from error
    return program


def choose_demonstrator(recipe: Recipe) -> str:
    """Name of the agent that demonstrates: the recipe's, the oracle, or one that copes with changed or hidden tools."""
    if recipe.warm_start.agent:
        return recipe.warm_start.agent
    return "adaptive" if recipe.wrappers.stress or recipe.wrappers.retrieve else "oracle"


def load_demonstrators(recipe: Recipe) -> AgentFactory:
    """The agents that demonstrate; the code of an agent of the user is run.

    Raises ConfigError if there is no such agent, or if it needs a model.
    """
    name = choose_demonstrator(recipe)
    if name in SCRIPTED:
        return SCRIPTED[name]
    agent = load_agent(name)
    if agent is None:
        raise ConfigError(
            f"recipe '{recipe.name}': warm_start.agent is '{name}': no such agent; have {', '.join(SCRIPTED)}, or"
            " FILE.py:NAME"
        )
    if agent.takes_model:
        raise ConfigError(
            f"recipe '{recipe.name}': warm_start.agent is '{name}', which takes a model: record a run of it with"
            " gymcp eval, and name its folder in warm_start.run"
        )
    return make_user_agents(agent, None, ReactSettings())
