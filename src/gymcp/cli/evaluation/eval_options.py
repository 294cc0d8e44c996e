"""Options of ``gymcp eval``: type, help text and bounds; their defaults are in the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.policies.specs import FORMS
from gymcp.agents.runner.run import AGENTS
from gymcp.agents.tool_calls.formats import FORMATS
from gymcp.envs.wrappers.injection import ATTACKS
from gymcp.envs.wrappers.stress import STRESSORS

REACT_PANEL = "Agent react"

AgentOption = Annotated[str, typer.Option(help=f"Agent: {', '.join(AGENTS)}.")]
LimitOption = Annotated[int, typer.Option(min=0, help="Maximum number of tasks, evenly spread; 0: all.")]
TrialsOption = Annotated[int, typer.Option(min=1, help="Episodes per task.")]
OutOption = Annotated[Path | None, typer.Option(help="Run folder; default: runs/ENV-AGENT-TIME.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Continue the run in --out if there is one.")]
CassetteOption = Annotated[
    str | None,
    typer.Option(
        help="Mode for servers with a URL. record: call them and record their answers; replay: never call them."
    ),
]
AttackOption = Annotated[
    str | None,
    typer.Option(help=f"Play every task with every attacker's goal, under this attack: {', '.join(ATTACKS)}."),
]
PrivilegesOption = Annotated[
    Path | None, typer.Option(help="TOML file with rules over tool calls, enforced between agent and servers.")
]
StressOption = Annotated[
    list[str] | None, typer.Option(help=f"Stressor to apply to the tools: {', '.join(STRESSORS)}; repeatable.")
]
UserPolicyOption = Annotated[
    str | None, typer.Option(help="Model that plays the user by each task's scenario; same forms as --policy.")
]
RetrieveOption = Annotated[
    int | None,
    typer.Option(
        min=0, help="Number of tools to show, found by the user's words; a search tool is added for the others."
    ),
]
ToolBudgetOption = Annotated[
    int | None, typer.Option(help="Maximum characters of all tools shown at a time, with --retrieve.")
]
PolicyOption = Annotated[str | None, typer.Option(help=f"Model of agent react: {FORMS}.", rich_help_panel=REACT_PANEL)]
TemperatureOption = Annotated[
    float, typer.Option(help="Sampling temperature; 0: always the likeliest token.", rich_help_panel=REACT_PANEL)
]
TopPOption = Annotated[
    float, typer.Option(help="Probability mass of the likeliest tokens to draw from.", rich_help_panel=REACT_PANEL)
]
TopKOption = Annotated[
    int, typer.Option(help="Number of likeliest tokens to draw from; 0: all.", rich_help_panel=REACT_PANEL)
]
MaxTokensOption = Annotated[int, typer.Option(help="Maximum tokens in one answer.", rich_help_panel=REACT_PANEL)]
StopOption = Annotated[
    list[str] | None, typer.Option(help="Text that ends an answer; repeatable.", rich_help_panel=REACT_PANEL)
]
MaxTurnsOption = Annotated[
    int | None, typer.Option(help="Maximum answers of the model in one episode.", rich_help_panel=REACT_PANEL)
]
MaxEpisodeTokensOption = Annotated[
    int | None,
    typer.Option(help="Maximum tokens that the model draws in one episode.", rich_help_panel=REACT_PANEL),
]
MaxEpisodeSecondsOption = Annotated[
    float | None,
    typer.Option(help="Maximum seconds of the model's time in one episode.", rich_help_panel=REACT_PANEL),
]
MaxEpisodeCostOption = Annotated[
    float | None,
    typer.Option(help="End an episode once its model has cost this much (USD).", rich_help_panel=REACT_PANEL),
]
MaxCostOption = Annotated[
    float | None,
    typer.Option(help="Stop the run once this much has been spent (USD).", rich_help_panel=REACT_PANEL),
]
PricesOption = Annotated[
    Path | None, typer.Option(help="TOML file with prices per million tokens (USD).", rich_help_panel=REACT_PANEL)
]
OverflowOption = Annotated[
    str,
    typer.Option(help="Reaction to a full context: stop, or drop old tool results.", rich_help_panel=REACT_PANEL),
]
SystemOption = Annotated[Path | None, typer.Option(help="File with a system prompt.", rich_help_panel=REACT_PANEL)]
ToolCallsOption = Annotated[
    str, typer.Option(help="Form of an endpoint's tool calls: native or text.", rich_help_panel=REACT_PANEL)
]
ToolFormatOption = Annotated[
    str | None,
    typer.Option(
        help=f"Format of tool calls in the chat template: {', '.join(FORMATS)} or transformers; default: by template.",
        rich_help_panel=REACT_PANEL,
    ),
]
TokenizerOption = Annotated[
    Path | None, typer.Option(help="Tokenizer folder for a remote vLLM server.", rich_help_panel=REACT_PANEL)
]
KeyEnvOption = Annotated[
    str, typer.Option(help="Environment variable that holds the endpoint's key.", rich_help_panel=REACT_PANEL)
]
RequestsPerMinuteOption = Annotated[
    float | None, typer.Option(help="Maximum requests per minute to the endpoint.", rich_help_panel=REACT_PANEL)
]
RequestTimeoutOption = Annotated[
    float, typer.Option(help="Seconds to wait for one answer of the endpoint.", rich_help_panel=REACT_PANEL)
]
SlotsOption = Annotated[
    int, typer.Option(min=1, help="Answers that a local model draws at a time.", rich_help_panel=REACT_PANEL)
]
DeviceOption = Annotated[
    str | None, typer.Option(help="Device of a local model, such as cpu or cuda.", rich_help_panel=REACT_PANEL)
]
