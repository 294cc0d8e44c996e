"""Environments. Importing this registers the catalog with Gymnasium: ``gymnasium.make("gymcp/bfcl-v0")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.envs.gymnasium_registration import register_catalog
from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.envs.catalog import load_spec
    from gymcp.envs.environment_sources import load_recorded
    from gymcp.envs.episodes.episode import Episode, open_episode
    from gymcp.envs.gym import McpEnv
    from gymcp.envs.layers import CallContext, Layer
    from gymcp.envs.mixture import mix_environments
    from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
    from gymcp.envs.tool_costs import CallCost, ToolCosts, rate_risks
    from gymcp.envs.users import AskableUser, InstructedUser, ScriptedUser, SimulatedUser

__all__ = [
    "AskableUser",
    "CallContext",
    "CallCost",
    "EnvSpec",
    "Episode",
    "InstructedUser",
    "Layer",
    "LoadedEnv",
    "McpEnv",
    "ScriptedUser",
    "SimulatedUser",
    "ToolCosts",
    "load_env",
    "load_recorded",
    "load_spec",
    "mix_environments",
    "open_episode",
    "rate_risks",
    "register_catalog",
]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(
        __name__,
        {
            "catalog": "load_spec",
            "environment_sources": "load_recorded",
            "episodes.episode": "Episode open_episode",
            "gym": "McpEnv",
            "layers": "CallContext Layer",
            "mixture": "mix_environments",
            "spec": "EnvSpec LoadedEnv load_env",
            "tool_costs": "CallCost ToolCosts rate_risks",
            "users": "AskableUser InstructedUser ScriptedUser SimulatedUser",
        },
    )

register_catalog()
