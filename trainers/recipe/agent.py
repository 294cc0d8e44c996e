"""The agents that a recipe names: how the trained model plays its episodes, and which agent demonstrates."""

from __future__ import annotations

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
    """The recipe's agent, whose code is run; None for react.

    Raises ConfigError if there is none, or if it takes no model: only the tokens of the trained model can be learnt
    from.
    """
    name = recipe.rollout.agent
    if name in ("", REACT):
        return None
    if is_program(name):
        return make_program(name)
    agent = load_agent(name)
    if agent is None:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.agent is '{name}': no such agent; have react, or FILE.py:NAME"
        )
    if not agent.takes_model:
        raise ConfigError(
            f"recipe '{recipe.name}': rollout.agent is '{name}', which takes task and seed; training needs the tokens"
            " of the trained model: make it a function of model and settings"
        )
    return agent


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
