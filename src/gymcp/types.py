"""Records that the stages hand to each other: frozen, plain, and documented once, here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gymcp.outcome import Outcome
from gymcp.samples import ModelUsage as ModelUsage
from gymcp.samples import RequestTimes as RequestTimes
from gymcp.samples import Sampled as Sampled
from gymcp.samples import Sampling as Sampling

Json = Any
"""Any value that `json.loads` can return."""

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """A tool as the agent sees it."""

    name: str
    """Name that the agent uses: unique in an episode (prefixed with the server's name if two servers share a name)."""
    description: str = ""
    input_schema: Mapping[str, Json] = field(default_factory=dict)
    annotations: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call that the agent wants to make."""

    id: str
    """Unique among the calls of one episode."""
    name: str
    arguments: Mapping[str, Json] | str = field(default_factory=dict)
    """A mapping; or the raw text of the model if it is not a JSON object, which is answered with an error result."""
    parse_error: str = ""
    """Reason why the model's text is not a call, which the error result repeats; empty for a call that can be run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """One message of the talk between system, user, agent and tools."""

    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One decision of the agent. An action without calls is a message to the user and ends the user turn."""

    text: str = ""
    tool_calls: tuple[ToolCall, ...] = ()

    @property
    def is_usable(self) -> bool:
        """True if the action has text or, if it has calls, at least one that can be run."""
        return any(not call.parse_error for call in self.tool_calls) if self.tool_calls else bool(self.text)

    def to_message(self) -> Message:
        """The action as the agent's message in a conversation."""
        return Message(role="assistant", content=self.text, tool_calls=self.tool_calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The input of one decision of the agent."""

    messages: tuple[Message, ...]
    """New messages since the last action only."""
    tools: tuple[Tool, ...]
    """Tools that may be called now; they can differ between user turns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldTurn:
    """The solution of one user turn."""

    calls: tuple[ToolCall, ...] = ()
    final_text: str = ""
    """Message with which the agent ends this user turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeLimits:
    """Budgets of one episode. When one runs out, the episode is truncated and graded as it stands."""

    steps: int = 100
    steps_per_turn: int | None = None
    """Most actions in one user turn; None: no limit."""
    calls_per_step: int = 64
    agent_s: float | None = None
    """Wall-clock seconds for all decisions of the agent together; None: the limit of the run, an hour by default."""
    call_timeout_s: float = 30.0
    """Seconds for one tool call. Then the call is an error result if the server still answers anything. If not, the
    server hangs: `ServerLimitExceeded` if it declares its state, `ServerTimeout` otherwise."""
    tool_s: float = 300.0
    """Wall-clock seconds for all tool calls: less than `Schedule.harness_timeout_s`, after which there is no score."""
    argument_bytes: int = 1_000_000
    """Size of the arguments of one call, as JSON; longer arguments are refused with an error result."""
    result_chars: int = 100_000
    """Characters of one result that the agent sees; the rest is cut and the cut is marked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """A fact that the user knows and tells when asked for it."""

    name: str
    words: tuple[str, ...]
    """A question that holds any of these asks for the fact: a word, or words in this order (`match_facts`)."""
    says: str
    needed: bool = True
    """False if the request already states the fact, so that the agent need not ask."""
    needed_by: tuple[str, ...] = ()
    """Tools whose every call needs the fact: a call before the user has told it is a guess."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserScript:
    """Knowledge of a simulated user about a task. Never reaches the sandbox."""

    scenario: str | None = None
    """Instructions for a model that plays the user, which the agent never sees; None: only a scripted user can."""
    facts: tuple[Fact, ...] = ()
    """Facts that the user gives when asked (`gymcp.envs.wrappers.ask_user`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOffer:
    """The part of the environment that a task offers to the agent."""

    servers: frozenset[str] | None = None
    """Servers that are started for the task and whose tools are on offer; None: all of the environment."""
    withheld: tuple[frozenset[str], ...] = ()
    """Tools that are not on offer, for each user turn; empty: all tools, always."""

    def withheld_in(self, turn: int) -> frozenset[str]:
        """The tools that are not on offer in a user turn."""
        return self.withheld[turn] if turn < len(self.withheld) else frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task of a suite: prompts, the state that its world starts from, and what its end is compared with."""

    id: str
    prompts: tuple[str, ...]
    """One per user turn."""
    handbook: str | None = None
    """A policy document: the system message that the agent reads before the first prompt."""
    initial_state: Json = None
    """State that servers with a setup method or `FileState` start from: the only part that enters the sandbox."""
    target: Json = None
    """Expected result that the grader compares with. Never reaches the sandbox or a prompt."""
    gold: tuple[GoldTurn, ...] = ()
    """One per user turn. Never reaches the sandbox or a prompt."""
    last_necessary: tuple[int, int] | None = None
    """(user turn, call) of the last gold call without which the task fails; None if there is none. A final text that
    tells the user to do something has the number after the turn's last call."""
    attack: GoldTurn | None = None
    """Calls that an attacker wants in addition to the gold; None: no attack. Never reaches the sandbox or a prompt."""
    user: UserScript = field(default_factory=UserScript)
    offer: ToolOffer = field(default_factory=ToolOffer)
    limits: EpisodeLimits | None = None
    """Limits for this task; None: those of the environment."""
    split: str = "test"
    tags: tuple[str, ...] = ()
    """Labels by which reports break results down, most important first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A named and versioned set of tasks."""

    name: str
    version: str
    """Version that changes whenever a task changes."""
    tasks: tuple[Task, ...]
    source: str = ""
    pass_at_once: frozenset[str] = frozenset()
    """Tasks that the suite's own grader passes without any action, so that the null agent scores 1 on them."""
    gold_fails: frozenset[str] = frozenset()
    """Tasks whose gold calls are all meant to be answered with an error, such as an order that must be refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideAnswer:
    """An answer of the model that is the action of no step: a title, a summary, a call of a tool of the program's own,
    an action that a controller has replaced.

    `Trajectory.own_side_answers` tells the agent's own contexts from side calls.
    """

    step: int = 0
    """Number of the step that it came before; the number of all steps if it came after the last."""
    context: int
    """Number of the model's context, as in `Step.context`."""
    asked: str = ""
    """Beginning of the last message that the model read."""
    action: Action
    sampled: Sampled | None = None
    spent: ModelUsage | None = None
    replaced: bool = False
    """True: the action of step `step` was played in the place of this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """An action with its tokens and its cost. Agents without a model return the bare `Action`."""

    action: Action
    sampled: Sampled | None = None
    """Tokens of the action; None if the model does not give them, so that there is nothing to train on."""
    spent: ModelUsage | None = None
    """Use of the model for the action, without that of `side_answers`."""
    reason: str = ""
    """Text to add to the episode's reason, such as that the context was shortened."""
    reasoning: str = ""
    request_times: RequestTimes | None = None
    context: int | None = None
    """Recorded as `Step.context`."""
    side_answers: tuple[SideAnswer, ...] = ()
    """Other answers of the model since the last decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """The agent's decision to end the episode here."""

    outcome: Outcome
    """``budget_exhausted``, graded as it stands, or ``agent_error``, which is 0."""
    reason: str
    side_answers: tuple[SideAnswer, ...] = ()
    """Answers of the model since the last decision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolResult:
    """The answer to one call, as the agent sees it, with what is recorded beside it."""

    call_id: str
    content: str
    """Text as the server returned it, without control characters, before it was cut for the agent."""
    is_error: bool = False
    seconds: float = 0.0
    content_bytes: int = 0
    cost: float = 0.0
    executed_call: ToolCall | None = None
    """The call as the server received it, if a layer renamed the tool or its arguments; None: as the agent made it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToolCalls:
    """Calls that the user made to the user's own tools before answering."""

    calls: tuple[ToolCall, ...]
    results: tuple[ToolResult, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One action and its results, executed in order."""

    turn: int
    """User turn, from 0."""
    observation: Observation
    """Messages and tools that the agent saw before it acted."""
    action: Action
    results: tuple[ToolResult, ...] = ()
    user_acts: tuple[UserToolCalls, ...] = ()
    """Calls that the user made between the agent's message and the user's answer."""
    reward: float = 0.0
    state_key: str = ""
    """Digest of the situation in which the agent acted: the anchor of step-level credit."""
    world_key: str = ""
    """Digest of the world after the step."""
    state_ref: str | None = None
    """Content address of the state after the step; None if the servers declare no state."""
    sampled: Sampled | None = None
    valid: bool = True
    """False if the agent produced nothing usable in this step."""
    agent_s: float = 0.0
    """Seconds the agent took to decide."""
    reasoning: str = ""
    """The model's reasoning before the action, if its endpoint tells it apart: for people, and not exported."""
    request_times: RequestTimes | None = None
    """Part of `agent_s`; None if no model was asked, or the times are not known."""
    model_usage: ModelUsage | None = None
    """Use of the model for the action; None: not known, or one answer without a price, with its tokens in `sampled`."""
    context: int | None = None
    """Number of the model's context that the action comes from, in the order of their beginning; None: there is one, or
    the tokens tell them apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    tool_calls: int = 0
    """Calls of the agent, with those of undone steps, which are in `tool_errors`, `tool_s` and `tools`, too."""
    tool_errors: int = 0
    user_calls: int = 0
    """Calls of tools that only the user has."""
    prompt_tokens: int = 0
    """Tokens that the agent's model read. `completion_tokens` and `models` are the agent's as well."""
    completion_tokens: int = 0
    cost: float = 0.0
    """Cost of tools and models together, a simulated user and calls that were replayed included."""
    user_cost: float = 0.0
    """Cost of the model that plays the user."""
    started_at: float = 0.0
    """Unix time."""
    wall_s: float = 0.0
    """Seconds of the whole episode: the sum of the next five and `harness_s`."""
    reset_s: float = 0.0
    agent_s: float = 0.0
    """Seconds of waiting for the agent's decisions, including those that never came."""
    tool_s: float = 0.0
    user_s: float = 0.0
    """Seconds of waiting for the user, the user's calls included."""
    grading_s: float = 0.0
    """Seconds of the grader, and of the judge or the head that values the episodes of a search."""
    tools: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Tool name -> ``calls``, ``errors``, ``seconds``, ``cost``, and ``without_network`` if calls failed for that."""
    models: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """Model name -> ``requests``, ``prompt_tokens``, ``completion_tokens``, ``cost``."""

    @property
    def harness_s(self) -> float:
        """Seconds that remain for the harness itself: digests, states, stopping the servers."""
        others = self.reset_s + self.agent_s + self.tool_s + self.user_s + self.grading_s
        return max(0.0, self.wall_s - others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A grader's verdict: an unshaped value, and a reason that a person can use."""

    value: float
    """Score in [0, 1]; 1 is success."""
    components: Mapping[str, float] = field(default_factory=dict)
    """Parts of the verdict and additional metrics, by name."""
    reason: str = ""
    ground_truths: Mapping[str, Json] = field(default_factory=dict)
    """Values that a dynamic grader looked up and compared with: kept with the record, for grading it again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """The record of one episode."""

    id: str
    env: str
    task: str
    group: str = ""
    """Name that episodes of one task from one policy version share: advantages compare within it."""
    seed: int = 0
    trial: int = 0
    parent: str | None = None
    """Id of the trajectory that this one was forked from."""
    steps: tuple[Step, ...] = ()
    initial_key: str = ""
    """Digest of the world after the reset."""
    final_key: str = ""
    final_state: str | None = None
    """Content address of the last state, captured before the sandbox was torn down."""
    outcome: Outcome = Outcome.SCORED
    score: float | None = None
    """None: there is no score, which is different from 0."""
    components: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    """Explanation of the score, or of what broke."""
    usage: Usage = field(default_factory=Usage)
    provenance: Mapping[str, Json] = field(default_factory=dict)
    side_answers: tuple[SideAnswer, ...] = ()
    """Answers of the model that are no step, in the order of time."""

    @property
    def own_side_answers(self) -> tuple[SideAnswer, ...]:
        """Those in contexts of the agent, with a step or a call of a tool, and those that were replaced. The others are
        side calls, such as titles.

        They are the agent's decisions as steps are, and are trained on: a delegation, a sub-agent's report, a summary
        that was asked for within the context.
        """
        acts = {step.context for step in self.steps}
        acts |= {answer.context for answer in self.side_answers if answer.action.tool_calls}
        return tuple(answer for answer in self.side_answers if answer.replaced or answer.context in acts)

    @property
    def success(self) -> bool | None:
        """True for a full score, False for less, None if there is no score."""
        return None if self.score is None else self.score >= 1.0
