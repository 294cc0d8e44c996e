"""The records that cross stages: frozen, plain, and documented once, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

Json = Any
"""A value `json.loads` can return."""

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    name: str
    """What the agent calls it: unique in an episode (qualified by the server's name on collision)."""
    description: str = ""
    input_schema: Mapping[str, Json] = field(default_factory=dict)
    annotations: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    id: str
    """Unique among the calls of one episode."""
    name: str
    arguments: Mapping[str, Json] | str = field(default_factory=dict)
    """A mapping, or the raw text the model wrote where that is not a JSON object (answered with an error result)."""
    problem: str = ""
    """Why what the model wrote is no call at all: what it is answered with. Empty for a call that can be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One decision of the agent. Without calls the agent speaks, which ends the user turn."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def is_usable(self) -> bool:
        """True where it says something, or makes a call that can be made."""
        return any(not call.problem for call in self.tool_calls) if self.tool_calls else bool(self.text)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    messages: tuple[Message, ...]
    """Only what is new since the last action."""
    tools: tuple[Tool, ...]
    """What may be called now; it can differ between user turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldTurn:
    calls: tuple[ToolCall, ...] = ()
    final_text: str = ""
    """What the agent says to end this user turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Budgets of one episode. One that runs out truncates it; it is then graded as it stands."""

    steps: int = 100
    steps_per_turn: int | None = None
    """Actions in one user turn."""
    calls_per_step: int = 64
    agent_s: float | None = None
    """Wall-clock seconds of the agent's own thinking."""
    call_timeout_s: float = 30.0
    """One tool call; after that it is an error result, where the server still answers anything. Else it is hung
    (`ServerExhausted` where it declares its state, `ServerTimeout` where it does not)."""
    tool_s: float = 300.0
    """All tool calls together, in wall-clock seconds: less than a whole episode may take, which would be no score."""
    argument_bytes: int = 1_000_000
    """Arguments of one call, as JSON; more is refused with an error result."""
    result_chars: int = 100_000
    """Text of one result that the agent sees; the rest is cut and the cut is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """What the user knows and says when asked for it."""

    name: str
    words: tuple[str, ...]
    """A question with any of these words in it asks for it."""
    says: str
    needed: bool = True
    """False where the request tells it already, so that nobody needs to ask."""
    needed_by: tuple[str, ...] = ()
    """Tools of which every call needs it: one that is made before the user has told it is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    id: str
    prompts: tuple[str, ...]
    """One per user turn."""
    initial_state: Json = None
    """Handed to servers that declare a setup; what those with `FileState` start from. The only part of a task that
    enters the sandbox."""
    target: Json = None
    """What the grader compares with. Never reaches the sandbox or a prompt."""
    gold: tuple[GoldTurn, ...] = ()
    """One per user turn. Never reaches the sandbox or a prompt."""
    last_necessary: tuple[int, int] | None = None
    """(user turn, call) of the last gold call without which the task fails; None where there is none. The number after
    a turn's last call is that of its final text, where a user is told to do something."""
    withheld: tuple[frozenset[str], ...] = ()
    """Per user turn, the tools that are not on offer in it; empty: all tools, always."""
    handbook: str | None = None
    """A policy document: the system message that the agent reads before the first prompt."""
    scenario: str | None = None
    """What a model that plays the user is told: who they are, what they want, how they behave. None: only a scripted
    user can play it. Never reaches the agent or the sandbox."""
    facts: tuple[Fact, ...] = ()
    """Facts that the simulated user gives when asked (`gymcp.envs.wrappers.ask_user`). Never reaches the sandbox."""
    hijack: GoldTurn | None = None
    """What an attacker wants the agent to do beside the gold; None: nobody attacks. Never reaches sandbox or prompt."""
    servers: frozenset[str] | None = None
    """The environment's servers that are started for it and whose tools are on offer; None: all."""
    limits: EpisodeLimits | None = None
    """None: the environment's limits."""
    split: str = "test"
    tags: tuple[str, ...] = ()
    """What reports break down by, most important first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    name: str
    version: str
    """Bumped whenever a task changes."""
    tasks: tuple[Task, ...]
    source: str = ""
    pass_at_once: frozenset[str] = frozenset()
    """Tasks that the suite's own grader passes when nothing is done, so that the null agent scores 1 on them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn."""

    max_tokens: int = 512
    temperature: float = 1.0
    """0: the likeliest token, always."""
    top_p: float = 1.0
    top_k: int = 0
    """0: no limit."""
    stop: tuple[str, ...] = ()
    """Texts that end the sample; the tokens that spell them are part of it."""
    seed: int | None = None
    """None: drawn from the engine's own generator. The same seed, prompt and weights give the same tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """Tokens of one action, exactly as the engine saw and drew them."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Of each of `ids` under the distribution it was drawn from, temperature included, before top-p and top-k. At
    temperature 0: of the distribution at temperature 1."""
    versions: tuple[tuple[str, int, int], ...]
    """(weight version, start, end) spans over `ids`."""
    finish: Literal["stop", "length"] = "stop"
    """Whether the model ended the sample, or `max_tokens` or the context did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one decision took of a model."""

    model: str
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: float = 0.0
    """0 where the model has no known price."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action, and where it came from. Agents without a model give the bare `Action`."""

    action: Action
    sampled: Sampled | None = None
    """None where the model's tokens are not known: nothing to train on."""
    spent: Spent | None = None
    note: str = ""
    """What the episode's reason must say, such as that the context was shortened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The agent goes no further: the episode ends here."""

    outcome: Outcome
    """``budget_exhausted``, graded as it stands, or ``agent_error``, which is 0."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    call_id: str
    content: str
    """As the server gave it, without terminal escapes and control characters, before it was cut for the agent."""
    is_error: bool = False
    seconds: float = 0.0
    bytes: int = 0
    cost: float = 0.0
    made: ToolCall | None = None
    """The call as the server knows it, where something on its way gave it another name; None: as the agent made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToolCalls:
    """Calls that the user made of tools of their own, before they answered."""

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UserView:
    """What a user knows when it is their turn."""

    messages: tuple[Message, ...] = ()
    """All that was said aloud (``user``: the user, ``assistant``: the agent), and the user's own calls with what they
    gave (``tool``). The agent's calls are not heard. Empty: the user speaks first."""
    tools: tuple[Tool, ...] = ()
    """What they may call now; none before the agent has spoken."""
    seed: int = 0
    """Of the episode, for what is drawn at random."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action and its results, executed in order."""

    turn: int
    """User turn, from 0."""
    observation: Observation
    """What the agent saw before it acted."""
    action: Action
    results: tuple[ToolResult, ...] = ()
    user_acts: tuple[UserToolCalls, ...] = ()
    """What the user did between the agent's words and their answer."""
    reward: float = 0.0
    state_key: str = ""
    """Digest of what the agent stood in front of when it acted: the anchor of step-level credit."""
    world_key: str = ""
    """Digest of the world after the step."""
    state_ref: str | None = None
    """Content address of the state after the step; None where the servers declare none."""
    sampled: Sampled | None = None
    valid: bool = True
    """False where the agent produced nothing usable in this step."""
    agent_s: float = 0.0
    """Seconds the agent took to decide."""


class Outcome(StrEnum):
    """How an episode ended: the one table that decides what counts, what trains and what is run again.

    ================  ======  ===========  ======  ==============
    outcome           score   in the mean  trains  on resume
    ================  ======  ===========  ======  ==============
    scored            graded  yes          yes     kept
    budget_exhausted  graded  yes          yes     kept
    agent_error       0       yes          yes     kept
    env_infra         None    no           no      retried, capped
    policy_infra      None    no           no      retried, capped
    timeout           None    no           no      retried, capped
    grader_error      None    no           no      re-graded
    cancelled         None    no           no      run again
    ================  ======  ===========  ======  ==============

    No agent can take itself out of the mean by what it does to a world. These end an episode as ``budget_exhausted``,
    graded on the state before that step, provided that the world could be told after its reset:

    * a call that takes a server over a limit of its sandbox, whatever server it is;
    * a call that blocks a server that declares its state: the server had answered until then, and its only thread is in
      the agent's call. One that is slow in Python is interrupted, which is an error result;
    * files that have no digest any more: over a limit of `DigestLimits`, never at rest, gone, or such that they end
      every process that reads them;
    * a declared state that cannot be told: no JSON, NaN, an infinity, an integer of more than 4,300 digits, half a
      character, more than 100 levels, longer than a message may be, or telling it raises or does not end.

    What a call gives, and what an agent says, is an observation or part of the record, whatever it is. These have no
    score, because nobody knows that it was the agent: a server that ends by itself, breaks its protocol or sends a key
    that its state has not (``env_infra``), one that declares no state and hangs (``timeout``), a world that has no
    digest after its reset, and a helper or a machine that fails (``env_infra``).

    Capped: a run tries a job up to `Schedule.max_attempts` times, and so does every resume, until `MAX_RESUMES` times
    as many attempts have failed; then the job stays lost. Re-graded: from the record, nothing is run.
    """

    SCORED = "scored"
    BUDGET_EXHAUSTED = "budget_exhausted"
    AGENT_ERROR = "agent_error"
    ENV_INFRA = "env_infra"
    POLICY_INFRA = "policy_infra"
    TIMEOUT = "timeout"
    GRADER_ERROR = "grader_error"
    CANCELLED = "cancelled"

    @property
    def has_score(self) -> bool:
        """True where the episode counts: it has a score, enters means and may train."""
        return self in (Outcome.SCORED, Outcome.BUDGET_EXHAUSTED, Outcome.AGENT_ERROR)

    @property
    def is_infra(self) -> bool:
        """True where the harness failed: counted apart, retried up to a cap."""
        return self in (Outcome.ENV_INFRA, Outcome.POLICY_INFRA, Outcome.TIMEOUT)

    @property
    def runs_again(self) -> bool:
        """True where nothing was recorded that could be graded: another attempt may take its place."""
        return self.is_infra or self is Outcome.CANCELLED


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    tool_calls: int = 0
    """The agent's."""
    tool_errors: int = 0
    user_calls: int = 0
    """Of tools that only the user has."""
    prompt_tokens: int = 0
    """The agent's, as `completion_tokens` and `models`."""
    completion_tokens: int = 0
    cost: float = 0.0
    """Of tools and models together, that of a simulated user included."""
    user_cost: float = 0.0
    """Of the model that plays the user."""
    started_at: float = 0.0
    """Unix time."""
    wall_s: float = 0.0
    """All seconds of the episode, which the next five and `harness_s` split."""
    reset_s: float = 0.0
    agent_s: float = 0.0
    """Waiting for the agent's decisions, those that never came included."""
    tool_s: float = 0.0
    user_s: float = 0.0
    """Waiting for the user, their calls included."""
    grading_s: float = 0.0
    tools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By tool: ``calls``, ``errors``, ``seconds``, ``cost``."""
    models: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By model: ``requests``, ``prompt_tokens``, ``completion_tokens``, ``cost``."""

    @property
    def harness_s(self) -> float:
        """What neither agent nor tools nor grader took: digests, states, the end of the servers."""
        others = self.reset_s + self.agent_s + self.tool_s + self.user_s + self.grading_s
        return max(0.0, self.wall_s - others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A grader's verdict: unshaped, and in words a person can use."""

    value: float
    """In [0, 1]; 1 is success."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Parts of the verdict and metrics beside it, by name."""
    reason: str = ""
    ground_truths: Mapping[str, Json] = field(default_factory=dict)
    """What was compared with, where that was found out when grading: kept with the record, for grading it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one episode."""

    id: str
    env: str
    task: str
    group: str = ""
    """Episodes of one task from one policy version: what advantages are compared in."""
    seed: int = 0
    trial: int = 0
    parent: str | None = None
    """The trajectory this one was forked from."""
    steps: tuple[Step, ...] = ()
    initial_key: str = ""
    """Digest of the world after the reset."""
    final_key: str = ""
    final_state: str | None = None
    """Content address of the last state, captured before the sandbox was torn down."""
    outcome: Outcome = Outcome.SCORED
    score: float | None = None
    """None: there is no score, which is not 0."""
    components: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    """Why the score is what it is, or what broke."""
    usage: Usage = field(default_factory=Usage)
    provenance: Mapping[str, Json] = field(default_factory=dict)

    @property
    def success(self) -> bool | None:
        """True for a full score, False for less, None where there is no score."""
        return None if self.score is None else self.score >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A contiguous context to train on, [L] tokens; an edited context opens a new one."""

    token_ids: tuple[int, ...]
    loss_mask: tuple[bool, ...]
    """True for the tokens that the policy drew."""
    logprobs: tuple[float, ...]
    """As the engine drew them; 0 where the mask is False."""
    versions: tuple[tuple[str, int, int], ...]
    """(weight version, start, end) spans over the tokens drawn."""
    steps: tuple[tuple[int, int, int], ...]
    """(step, start, end): which tokens were drawn in which step of the trajectory."""
