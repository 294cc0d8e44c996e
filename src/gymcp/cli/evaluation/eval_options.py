"""Options of ``gymcp eval``: type, help text and bounds; their defaults are in the command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gymcp.agents.strategies.budgets import MAX_SECONDS
from gymcp.cli.completion import complete_agent, complete_run, offer
from gymcp.cli.known_names import AGENTS, ATTACKS, POLICY_FORMS, SEARCHES, STRESSORS, TOOL_FORMATS
from gymcp.cli.option_types import require_ray

AGENT_PANEL = "Agent"
TASKS_PANEL = "Tasks and the run"
TOOLS_PANEL = "Tools and the user"
MODEL_PANEL = "Model of agent react"
BUDGET_PANEL = "Budgets"
_POLICIES = ("tiny", "smollm2", "local:", "vllm:", "openai:")


def _of(panel: str, text: str, *names: str, **settings: Any) -> Any:
    """The option; without `names` it is called as its parameter."""
    return typer.Option(*names, help=text, rich_help_panel=panel, **settings)


AgentOption = Annotated[
    str | None,
    _of(
        AGENT_PANEL,
        f"Agent: {', '.join(AGENTS)}, FILE:NAME, cmd:PROGRAM; default: oracle or react.",
        "--agent",
        "-a",
        autocompletion=complete_agent,
    ),
]
AgentSandboxOption = Annotated[
    str,
    _of(
        AGENT_PANEL,
        "Sandbox of an agent that is a program: bwrap or none.",
        autocompletion=offer(("bwrap", "none")),
    ),
]
AgentStdinOption = Annotated[
    bool,
    typer.Option(
        "--agent-stdin",
        help="Keep one process of a program, which reads each user message as a line of JSON.",
        rich_help_panel=AGENT_PANEL,
    ),
]
AgentMountOption = Annotated[
    list[Path] | None,
    _of(AGENT_PANEL, "File or folder that a program may read; repeatable; default: those it names."),
]
PolicyOption = Annotated[
    list[str] | None,
    _of(
        AGENT_PANEL,
        f"Model of agent react or of your own: {POLICY_FORMS}; repeatable; default: none.",
        "--policy",
        "-p",
        autocompletion=offer(_POLICIES),
    ),
]
LimitOption = Annotated[
    int | None,
    _of(TASKS_PANEL, "Maximum number of tasks, evenly spread; 0: all; default: all.", "--limit", "-n", min=0),
]
TrialsOption = Annotated[int, _of(TASKS_PANEL, "Number of episodes per task.", min=1)]
ConcurrencyOption = Annotated[
    int | None,
    _of(
        TASKS_PANEL,
        "Number of concurrent episodes; default: chosen by memory, CPU and the model, and printed.",
        min=1,
    ),
]
BranchOption = Annotated[
    str | None,
    _of(
        TASKS_PANEL,
        "Branches of episodes on copies of their worlds, such as ways=2,steps=1+4,depth=1,episodes=8; default: none.",
    ),
]
SearchOption = Annotated[
    str | None,
    _of(
        TASKS_PANEL,
        f"Search for each task's answer: {', '.join(SEARCHES)}; with numbers, such as beam,width=3; default: none.",
        autocompletion=offer(SEARCHES),
    ),
]
RayOption = Annotated[
    str | None,
    _of(
        TASKS_PANEL,
        "Play on all nodes of a Ray cluster: auto or its address; --concurrency counts per node; default: here.",
        callback=require_ray,
        autocompletion=offer(("auto",)),
    ),
]
PlanOption = Annotated[
    Path | None,
    _of(
        TASKS_PANEL,
        "TOML file: which nodes play, and where models and judge are, with --ray; default: all nodes play alike.",
    ),
]
OutOption = Annotated[
    Path | None,
    _of(TASKS_PANEL, "Run folder; default: runs/ENV-AGENT-TIME.", "--out", "-o", autocompletion=complete_run),
]
ResumeOption = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue the run in --out if there is one; a higher --limit or --trials adds episodes.",
        rich_help_panel=TASKS_PANEL,
    ),
]
CassetteOption = Annotated[
    str | None,
    _of(
        TOOLS_PANEL,
        "Mode for servers with a URL: record or replay their answers; default: as the environment says.",
        autocompletion=offer(("record", "replay")),
    ),
]
AttackOption = Annotated[
    str | None,
    _of(
        TOOLS_PANEL,
        f"Attack that plays each task with each attacker's goal, such as {ATTACKS[1]}; default: no attacker.",
        autocompletion=offer(ATTACKS),
    ),
]
PrivilegesOption = Annotated[
    Path | None,
    _of(TOOLS_PANEL, "TOML file with rules over tool calls, enforced between agent and servers; default: no rules."),
]
StressOption = Annotated[
    list[str] | None,
    _of(
        TOOLS_PANEL,
        f"Stressor to apply to the tools, such as {STRESSORS[1]}; repeatable; default: none.",
        autocompletion=offer(STRESSORS),
    ),
]
UserPolicyOption = Annotated[
    str | None,
    _of(
        TOOLS_PANEL,
        "Model that plays the user by each task's scenario, as --policy; default: the task's scripted user.",
        autocompletion=offer(_POLICIES),
    ),
]
JudgeOption = Annotated[
    str | None,
    _of(
        TOOLS_PANEL,
        "Model that the environment's grader asks, as --policy; default: none, and then such a grader gives no score.",
        autocompletion=offer(_POLICIES),
    ),
]
RetrieveOption = Annotated[
    int | None,
    _of(TOOLS_PANEL, "Number of tools to show; a search tool finds the others; default: all are shown.", min=0),
]
ToolBudgetOption = Annotated[
    int | None, _of(TOOLS_PANEL, "Maximum characters of all tools shown at a time, with --retrieve; default: no limit.")
]
TemperatureOption = Annotated[float, _of(MODEL_PANEL, "Sampling temperature; 0: greedy decoding.")]
TopPOption = Annotated[float, _of(MODEL_PANEL, "Probability mass of the likeliest tokens to sample from.")]
TopKOption = Annotated[int, _of(MODEL_PANEL, "Number of likeliest tokens to sample from; 0: all.")]
MaxTokensOption = Annotated[int, _of(MODEL_PANEL, "Maximum number of tokens in one answer.")]
StopOption = Annotated[list[str] | None, _of(MODEL_PANEL, "Text that ends an answer; repeatable; default: none.")]
SystemOption = Annotated[Path | None, _of(MODEL_PANEL, "File with a system prompt; default: no system prompt.")]
OverflowOption = Annotated[
    str,
    _of(
        MODEL_PANEL,
        "Reaction to a full context: stop, or drop old tool results.",
        autocompletion=offer(("stop", "drop")),
    ),
]
ToolCallsOption = Annotated[
    str,
    _of(
        MODEL_PANEL,
        "Form of an endpoint's tool calls: native or text.",
        autocompletion=offer(("native", "text")),
    ),
]
ToolFormatOption = Annotated[
    str | None,
    _of(
        MODEL_PANEL,
        f"Tool calls in the chat template: {', '.join(TOOL_FORMATS)} or transformers; default: by template.",
        autocompletion=offer((*TOOL_FORMATS, "transformers")),
    ),
]
TokenizerOption = Annotated[
    Path | None, _of(MODEL_PANEL, "Tokenizer folder for a remote vLLM server; default: the server's own.")
]
KeyEnvOption = Annotated[str, _of(MODEL_PANEL, "Environment variable that holds the endpoint's key.")]
RequestsPerMinuteOption = Annotated[
    float | None, _of(MODEL_PANEL, "Maximum number of requests per minute to the endpoint; default: no limit.")
]
RequestTimeoutOption = Annotated[
    float | None,
    _of(MODEL_PANEL, "Seconds for one answer of the model, after which its episode ends; default: the agent's time."),
]
StreamOption = Annotated[
    bool,
    typer.Option(
        "--stream",
        help="Ask an endpoint for answers as streams: records the time to the first token, costs CPU per token.",
        rich_help_panel=MODEL_PANEL,
    ),
]
SlotsOption = Annotated[int, _of(MODEL_PANEL, "Number of concurrent answers of a local model.", min=1)]
DeviceOption = Annotated[
    str | None, _of(MODEL_PANEL, "Device of a local model, such as cpu or cuda; default: chosen automatically.")
]
MaxTurnsOption = Annotated[int, _of(BUDGET_PANEL, "Maximum number of the model's answers in one episode.")]
MaxEpisodeTokensOption = Annotated[int, _of(BUDGET_PANEL, "Maximum number of sampled tokens in one episode.")]
MaxEpisodeSecondsOption = Annotated[
    float | None,
    _of(
        BUDGET_PANEL,
        f"Maximum time of the agent in one episode, in seconds; default: the environment's, else {MAX_SECONDS:g}.",
    ),
]
MaxEpisodeCostOption = Annotated[
    float | None, _of(BUDGET_PANEL, "End an episode once its model has cost this much (USD); default: no limit.")
]
MaxCostOption = Annotated[
    float | None, _of(BUDGET_PANEL, "Stop the run once this much has been spent (USD); default: no limit.")
]
PricesOption = Annotated[
    Path | None, _of(BUDGET_PANEL, "TOML file with prices per million tokens (USD); default: no prices.")
]
