"""gymcp: any MCP tool server as a Gymnasium environment. The records and the errors that all packages share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

__version__ = "0.1.0"

if Path(__file__).with_name("envs").is_file():
    raise ImportError(
        "gymcp: this checkout has text files in place of the links src/gymcp/{envs,...}; "
        "run: git config core.symlinks true && git checkout -- src/gymcp"
    )

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.errors import ConfigError, EnvInfraError, GraderError, GymcpError, PolicyInfraError, UsageError
    from gymcp.outcome import Outcome
    from gymcp.protocols import Agent, AgentFactory, ChatPolicy, Grader, Policy, User
    from gymcp.types import (
        Action,
        Decision,
        EpisodeLimits,
        Fact,
        GiveUp,
        GoldTurn,
        Message,
        Observation,
        Sampling,
        Score,
        Step,
        Suite,
        Task,
        Tool,
        ToolCall,
        ToolOffer,
        ToolResult,
        Trajectory,
        UserScript,
    )

__all__ = [
    "Action",
    "Agent",
    "AgentFactory",
    "ChatPolicy",
    "ConfigError",
    "Decision",
    "EnvInfraError",
    "EpisodeLimits",
    "Fact",
    "GiveUp",
    "GoldTurn",
    "Grader",
    "GraderError",
    "GymcpError",
    "Message",
    "Observation",
    "Outcome",
    "Policy",
    "PolicyInfraError",
    "Sampling",
    "Score",
    "Step",
    "Suite",
    "Task",
    "Tool",
    "ToolCall",
    "ToolOffer",
    "ToolResult",
    "Trajectory",
    "UsageError",
    "User",
    "UserScript",
    "__version__",
]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(
        __name__,
        {
            "errors": "ConfigError EnvInfraError GraderError GymcpError PolicyInfraError UsageError",
            "outcome": "Outcome",
            "protocols": "Agent AgentFactory ChatPolicy Grader Policy User",
            "types": (
                "Action Decision EpisodeLimits Fact GiveUp GoldTurn Message Observation Sampling Score Step "
                "Suite Task Tool ToolCall ToolOffer ToolResult Trajectory UserScript"
            ),
        },
    )
