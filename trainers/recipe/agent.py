"""The agent that a recipe names: how the trained model plays its episodes."""

from __future__ import annotations

from gymcp.agents.programs.settings import ProgramSettings, is_program, make_program
from gymcp.agents.strategies.user_agents import UserAgent, load_agent
from gymcp.errors import ConfigError
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
