"""The options of ``gymcp eval`` and ``gymcp judge`` as records. Importing them imports none of what they configure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gymcp.agents.strategies.budgets import Budget
from gymcp.samples import KEY_VARIABLE, REQUEST_TIMEOUT_S
from gymcp.types import Sampling


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Options of a model, for the agent's model and for one that plays the user."""

    sampling: Sampling = field(default_factory=Sampling)
    budget: Budget = field(default_factory=Budget)
    overflow: str = "stop"
    """Reaction to a full context: ``stop``, or ``drop`` old tool results."""
    tool_calls: str = "native"
    """Form in which an endpoint takes and gives tool calls: ``native`` or ``text``."""
    tool_format: str | None = None
    """Format of tool calls in a chat template; None: found by the template."""
    tokenizer: Path | None = None
    """Folder with the tokenizer of a remote vLLM server's model."""
    system: Path | None = None
    """File with a system prompt."""
    prices: Path | None = None
    """TOML file with prices per million tokens."""
    key_env: str = KEY_VARIABLE
    """Environment variable that holds an endpoint's key."""
    requests_per_minute: float | None = None
    """Most requests to an endpoint in a minute; None: no limit."""
    request_timeout_s: float | None = None
    """Seconds for one answer; None: the agent's time for its model, `REQUEST_TIMEOUT_S` for a judge's or a user's."""
    stream: bool = False
    """Ask an endpoint for answers as streams, which shows the time to the first token."""
    slots: int = 16
    """Answers that a local model draws at a time."""
    device: str | None = None
    """Device of a local model, such as ``cpu`` or ``cuda``; None: chosen automatically."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramConfig:
    """Options of an agent that is a program."""

    sandbox: str = "bwrap"
    """``bwrap``, or ``none`` for a program that cannot run in a sandbox."""
    stdin: bool = False
    """True for one process that reads every message of the user, as lines of JSON."""
    mounts: Sequence[Path] = ()
    """Further files and folders that the program may read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalConfig:
    """The options of ``gymcp eval``; each field is the option of the same name."""

    env: str
    """Name in the catalog, or path of an environment file, whose code is run."""
    agent: str | None = None
    """None: ``react`` with a policy, else ``oracle``."""
    program: ProgramConfig = field(default_factory=ProgramConfig)
    sandbox: str = "bwrap"
    tasks: Sequence[str] | None = None
    """Ids or globs of tasks, joined by commas, or ``@FILE`` with one a line; None: all tasks."""
    limit: int | None = None
    """Most tasks to run, evenly spread; 0: all, and None likewise, but a run is resumed with its own limit only."""
    trials: int = 1
    """Episodes per task."""
    branch: str | None = None
    """Branches of episodes, as ``ways=2,steps=1+4,depth=1,episodes=8``; None: episodes do not branch."""
    search: str | None = None
    """Search for each task's answer, as ``beam,width=3,episodes=40``; None: no search."""
    concurrency: int | None = None
    """Episodes at a time; with `ray`, on each node. None: chosen (`gymcp.agents.runner.concurrency`), and
    `DEFAULT_CONCURRENCY` on each node."""
    ray: str | None = None
    """Address of the Ray cluster whose nodes play the episodes, or ``auto``; None: this process plays them."""
    plan: Path | None = None
    """TOML file that says which nodes play, and where models are (`gymcp.scale.plan`); None: all nodes play."""
    seed: int = 0
    out: Path | None = None
    """Run folder; None: a new one, ``runs/ENV-AGENT-TIME``."""
    resume: bool = False
    cassette: str | None = None
    """``record`` or ``replay`` for servers with a URL; None: as the environment says."""
    attack: str | None = None
    privileges: Path | None = None
    """TOML file with rules over tool calls."""
    stress: Sequence[str] = ()
    retrieve: int | None = None
    """Number of tools that the agent is shown; None: all, without a search tool."""
    tool_budget: int | None = None
    """Characters of all tools that are shown at a time."""
    policy: str | None = None
    """The model of agent ``react``."""
    judge: str | None = None
    """The model that the environment's grader asks; None: such a grader gives no score."""
    user_policy: str | None = None
    """The model that plays the user; None: the task's scripted user."""
    max_cost: float | None = None
    """Cost after which the run stops, in the currency of the price list (USD)."""
    min_coverage: float | None = None
    """Share of the episodes that must have a score for a headline figure, recorded with the run; None: the default."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """Options of both models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeConfig:
    """The options of ``gymcp judge``; each field is the option of the same name."""

    run: Path
    policy: str
    rubric: Path
    votes: int = 1
    """Answers for each episode; the majority counts."""
    temperature: float | None = None
    """None: 0 for one vote, and 1 for several, which would otherwise be identical."""
    max_tokens: int = 1024
    """Most tokens in one answer."""
    as_component: bool = False
    """Keep the scores; the verdict becomes a component named ``judge``."""
    concurrency: int = 8
    """Answers at a time."""
    key_env: str = KEY_VARIABLE
    prices: Path | None = None
    request_timeout_s: float = REQUEST_TIMEOUT_S
    tokenizer: Path | None = None
    device: str | None = None
