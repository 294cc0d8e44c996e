"""The state of an episode between two steps, and the budgets that follow from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gymcp.types import EpisodeLimits, Observation, SideAnswer, Step, ToolResult

RESULT_BYTES = 256_000_000
"""Most bytes of all results of an episode; further calls are refused, because a row of a run folder is bounded."""
NOTHING_OBSERVED = Observation(messages=(), tools=())
"""Observation before the first one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeState:
    """All that the next step of an episode depends on, except the world.

    An episode is its state and a world, a snapshot its state and snapshots of the servers.
    """

    initial_key: str
    """World key after the reset."""
    observation: Observation = NOTHING_OBSERVED
    """Messages and tools that the agent sees before the next step."""
    steps: tuple[Step, ...] = ()
    side_answers: tuple[SideAnswer, ...] = ()
    """Answers of the agent's model that are no step."""
    turn: int = 0
    """User turn, from 0."""
    turn_steps: int = 0
    """Steps of this user turn."""
    agent_s: float = 0.0
    """Seconds that the agent took for its decisions."""
    tool_s: float = 0.0
    """Seconds that the agent's calls took."""
    result_bytes: int = 0
    """Bytes of the results of the agent's calls."""
    history: str = ""
    """Digest of all observations so far, if the environment's anchor needs it."""

    @property
    def world_key(self) -> str:
        """World key after the last step, or after the reset."""
        return self.steps[-1].world_key if self.steps else self.initial_key

    @property
    def user_texts(self) -> tuple[str, ...]:
        """Texts of the user's messages in all observations, the oldest first."""
        observations = (*(step.observation for step in self.steps), self.observation)
        return tuple(
            message.content
            for observation in observations
            for message in observation.messages
            if message.role == "user"
        )

    def begin_step(self, agent_s: float, history: str) -> EpisodeState:
        """The state while a step runs that took the agent `agent_s` seconds to decide."""
        return replace(self, agent_s=self.agent_s + agent_s, turn_steps=self.turn_steps + 1, history=history)

    def add_result(self, result: ToolResult) -> EpisodeState:
        """The state after one more call, whose step still runs."""
        return replace(self, tool_s=self.tool_s + result.seconds, result_bytes=self.result_bytes + result.content_bytes)

    def add_step(self, step: Step) -> EpisodeState:
        """The state after the step, with the observation from before it."""
        return replace(self, steps=(*self.steps, step))

    def add_side_answers(self, answers: tuple[SideAnswer, ...]) -> EpisodeState:
        """The state with answers that came before the step that is next, or before the end."""
        here = len(self.steps)
        return replace(self, side_answers=(*self.side_answers, *(replace(answer, step=here) for answer in answers)))

    def next_turn(self) -> EpisodeState:
        """The state at the begin of the next user turn."""
        return replace(self, turn=self.turn + 1, turn_steps=0)


def find_undone(steps: Sequence[Step], restored: Sequence[Step]) -> Sequence[Step]:
    """The steps of a record that are no longer in it once it is the `restored` one."""
    kept = 0
    while kept < min(len(steps), len(restored)) and steps[kept] is restored[kept]:
        kept += 1
    return steps[kept:]


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The result of a step, as Gymnasium defines it."""

    observation: Observation
    reward: float
    """The score on the last step, 0 before."""
    terminated: bool
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Truncation:
    """The harness ends the episode after this step."""

    reason: str
    world_lost: bool = False
    """True if the state after the step cannot be read: the episode is graded on the state before it."""


def refuse_call(state: EpisodeState, limits: EpisodeLimits, index: int) -> str | None:
    """The reason why a step may not run its call number `index`; None if it may."""
    if index >= limits.calls_per_step:
        return f"not run: at most {limits.calls_per_step} calls in one step"
    if state.tool_s >= limits.tool_s:
        return f"not run: the tools have taken {limits.tool_s:g} s together"
    if state.result_bytes >= RESULT_BYTES:
        return f"not run: the results have {RESULT_BYTES} bytes together"
    return None


def check_budgets(
    state: EpisodeState, limits: EpisodeLimits, *, ends_turn: bool, observing_s: float
) -> Truncation | None:
    """The end by a budget that is exhausted after the step that is running; None if none is.

    `ends_turn`: True for a step without calls, after which the steps of a user turn count from 0 again. `observing_s`:
    seconds for reading the state that the calls left; the tools' budget pays for them, too.
    """
    if len(state.steps) + 1 >= limits.steps:
        return Truncation(reason=f"{limits.steps} steps")
    if limits.steps_per_turn is not None and (0 if ends_turn else state.turn_steps) >= limits.steps_per_turn:
        return Truncation(reason=f"{limits.steps_per_turn} steps in one user turn")
    if limits.agent_s is not None and state.agent_s >= limits.agent_s:
        return Truncation(reason=f"{limits.agent_s:g} s of the agent's time")
    if state.tool_s >= limits.tool_s:
        return Truncation(reason=f"{limits.tool_s:g} s of the tools' time")
    if state.tool_s + observing_s >= limits.tool_s:
        return Truncation(reason=f"{limits.tool_s:g} s of the tools' time, with that for reading what they left")
    if state.result_bytes >= RESULT_BYTES:
        return Truncation(reason=f"{RESULT_BYTES} bytes of results")
    return None
