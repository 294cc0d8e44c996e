"""Records that clients of the host send and get as JSON: the contract that docs/host.md describes."""

from __future__ import annotations

from dataclasses import field
from typing import Any, Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from gymcp.types import Json

WIRE = ConfigDict(use_attribute_docstrings=True, extra="forbid", strict=True)
"""Unknown fields are refused, texts are not read as numbers, and a field's docstring is its description."""
DEFAULT_AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Health:
    """A host that answers."""

    gymcp: str
    """Version of gymcp."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Environment:
    """An environment that the host serves."""

    name: str
    version: str
    description: str
    suite: str
    suite_version: str
    tasks: int
    """Number of tasks."""
    splits: dict[str, int]
    """Split -> number of its tasks."""
    generates: bool
    """True if it makes tasks beyond its suite, for `generate` of the start of an episode."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Environments:
    """All environments of the host."""

    environments: tuple[Environment, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class TaskEntry:
    """A task, without its prompts, which the user says in an episode."""

    id: str
    split: str
    tags: tuple[str, ...]
    """Labels by which reports break results down."""
    user_turns: int
    """Messages that the task has for the user; a simulated user may say more."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Tasks:
    """A page of the tasks of an environment, in the order of the suite."""

    total: int
    """Number of tasks of the split, or of the environment."""
    tasks: tuple[TaskEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Wrappers:
    """Wrappers around an environment, as `gymcp eval` has them."""

    privileges: dict[str, Any] | None = None
    """Rules over tool calls, with the keys of the TOML file of --privileges: ``default`` and ``rule``."""
    stress: tuple[str, ...] = ()
    """Names of stressors; the first is next to the servers."""
    attack: str | None = None
    """Name of an attack; the tasks are then called ``TASK.GOAL``."""
    retrieve: int | None = None
    """Number of tools to show; a search tool finds the others."""
    tool_budget: int | None = None
    """Maximum characters of all tools shown at a time, with `retrieve`."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class GenerateTask:
    """A task that the environment makes, as it does for training: the same fields always give the same task."""

    split: str = "train"
    number: int = 0
    """Place among the tasks of these families and levels, from 0: one of each kind, then the next one of each."""
    families: tuple[str, ...] = ()
    """Task families; empty: all of the split."""
    levels: tuple[int, ...] = ()
    """Difficulty levels; empty: all."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class StartEpisode:
    """The request for an episode."""

    environment: str
    task: str | None = None
    """Id of a task of the suite; null with `generate`."""
    generate: GenerateTask | None = None
    """A task beyond the suite, in place of `task`."""
    seed: int | None = None
    """Seed of all random choices; null: derived from the host's seed, the task and the trial, as `gymcp eval` does."""
    agent: str = DEFAULT_AGENT
    """Name of the agent in the records: each agent has a run folder of its own."""
    policy_version: str = ""
    """Version of the agent's policy: episodes of a task by one version form a group, whose advantages compare."""
    wrappers: Wrappers = Wrappers()
    """Wrappers of this episode: each choice has a run folder of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class TalkMessage:
    """A message for the agent."""

    role: Literal["system", "user"]
    content: str


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class ToolEntry:
    """A tool that the agent may call now."""

    name: str
    description: str
    input_schema: dict[str, Any]
    """JSON Schema of the arguments."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class McpAddress:
    """The MCP server of one episode."""

    url: str
    """Address of the streamable HTTP transport."""
    headers: dict[str, str]
    """Headers that every request needs; they hold the episode's token."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class StartedEpisode:
    """A live episode, which waits for its agent."""

    id: str
    """Id in the run folder, too."""
    token: str
    """Key of the agent: for this episode only, until it is over."""
    environment: str
    task: str
    trial: int
    """Number of the episode among those of its task, from 0; one that was lost is tried again under its number."""
    seed: int
    messages: tuple[TalkMessage, ...]
    """The prompt: the task's handbook, if it has one, and what the user says first."""
    tools: tuple[ToolEntry, ...]
    mcp: McpAddress
    run: str
    """Path of the run folder on the host."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Verdict:
    """The end of an episode, as it is recorded."""

    id: str
    environment: str
    task: str
    trial: int
    seed: int
    outcome: str
    """``scored``, ``budget_exhausted``, ``agent_error``, ``env_infra``, ``policy_infra``, ``timeout``,
    ``grader_error`` or ``cancelled``."""
    score: float | None
    """From 0 to 1; null: there is no score, which is not 0."""
    success: bool | None
    """True for a full score; null without a score."""
    reason: str
    """Explanation of the score, or of what broke."""
    components: dict[str, float]
    """Parts of the score and further values of the grader."""
    metrics: dict[str, float]
    """``steps``, ``user_turns``, ``tool_calls``, ``tool_errors``, ``cost``; seconds: ``wall_s``, ``agent_s``,
    ``tool_s``."""
    run: str


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Say:
    """The agent's message to the user, which ends its turn."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Reply:
    """The user's answer; the episode is over if the user has left, or a budget is spent."""

    over: bool
    messages: tuple[TalkMessage, ...] = ()
    tools: tuple[ToolEntry, ...] = ()
    """Tools that the agent may call in this turn: they can differ from those before."""
    verdict: Verdict | None = None
    """Null unless the episode is over."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class CallTool:
    """A call of a tool, for agents that do not speak MCP."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class ToolAnswer:
    """The result of a call."""

    content: str
    is_error: bool
    """True for a failed call, which the agent may mend."""
    over: bool
    """True if the call has ended the episode, because a budget is spent."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Finish:
    """The end of the agent's part."""

    text: str = ""
    """The agent's last message to the user."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class EpisodeStatus:
    """An episode, live or over."""

    id: str
    environment: str
    task: str
    trial: int
    seed: int
    over: bool
    tools: tuple[ToolEntry, ...] = ()
    """Tools that the agent may call now."""
    verdict: Verdict | None = None
    """Null while the episode is live."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class LiveEpisodes:
    """The load of the host."""

    live: int
    """Number of live episodes."""
    limit: int
    """Most episodes that may live at a time."""
    ids: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class ErrorDetail:
    code: str
    """Kind of the error, for programs."""
    message: str
    """One line for people, which says what is wrong, why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True, config=WIRE)
class Error:
    """The answer to a request that is refused."""

    error: ErrorDetail


Record = Json
"""One of the records above."""
