"""Protocols through which a layer uses one above it. `gymcp.cli` connects the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from gymcp.types import (
    Action,
    Decision,
    GiveUp,
    Json,
    Message,
    ModelUsage,
    Observation,
    Sampled,
    Sampling,
    Score,
    SideAnswer,
    Step,
    Task,
    Tool,
    Trajectory,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserView:
    """The conversation as the user knows it when the user's turn comes."""

    messages: tuple[Message, ...] = ()
    """All messages between the two (``user``: the user, ``assistant``: the agent), and the user's own calls with their
    results (``tool``). The user does not see the agent's calls. Empty: the user speaks first."""
    tools: tuple[Tool, ...] = ()
    """Tools that the user may call now; none before the agent has spoken."""
    seed: int = 0
    """Seed of the episode, for random choices of the user."""


class StateReader(Protocol):
    """Reads recorded states by their content address."""

    def __call__(self, ref: str, /) -> Json:
        """The state recorded under `ref`. Raises KeyError if there is none."""
        ...


class Grader(Protocol):
    """A pure function of the record: the same trajectory gets the same score, offline, for ever."""

    def __call__(self, task: Task, trajectory: Trajectory, states: StateReader) -> Score: ...


GRADER_PARAMETERS = ("task", "trajectory", "states")
"""Parameters with which a `Grader` is called, by position."""


class Agent(Protocol):
    """Decides the actions of one episode."""

    async def act(self, observation: Observation) -> Action | Decision | GiveUp:
        """The next action. Raises PolicyInfraError if the agent's model cannot be reached."""
        ...


@runtime_checkable
class Closes(Protocol):
    """An agent that holds something for its episode, such as a process."""

    async def close(self) -> None:
        """Let go of it; the episode has ended, or was cancelled."""
        ...


@runtime_checkable
class LeavesAnswers(Protocol):
    """An agent whose model also gives answers that belong to none of its actions."""

    def take_rest(self) -> tuple[SideAnswer, ...]:
        """Those that no decision has handed over, each once. Asked for when the episode ends without a decision."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """An agent that can go on from the record of another one: what branches of an episode need."""

    def resume(self, steps: Sequence[Step]) -> None:
        """Take these steps for its own. Called once, before the first `act`.

        Raises PolicyInfraError if the context that the model read cannot be rebuilt from them.
        """
        ...


class AgentFactory(Protocol):
    """Makes the agent of one episode. Only scripted agents read the task's gold."""

    def __call__(self, task: Task, seed: int) -> Agent: ...


class User(Protocol):
    """Speaks first, and answers when the agent speaks.

    A user keeps no state between answers: each answer follows from the talk alone, so that an episode can be continued
    from any of its points.
    """

    async def reply(self, view: UserView) -> Action | Decision | None:
        """The user's next message, or calls of `UserView.tools` to make first.

        None, or a decision without text and calls: the user has nothing left to say and leaves.

        Raises PolicyInfraError if the user's model cannot be reached.
        """
        ...


@runtime_checkable
class Confirms(Protocol):
    """A user that can be asked to allow an action. For any other user the answer is no."""

    async def confirm(self, question: str) -> bool: ...


@runtime_checkable
class Answers(Protocol):
    """A user that can be asked for facts. Any other user gives none."""

    async def answer_question(self, question: str) -> str: ...


class Policy(Protocol):
    """A language model, tokens in and tokens out. It may cache what it computed for a prompt: prompts only grow."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """The tokens that the model draws. Raises PolicyInfraError if the engine fails, never for the model's text.

        Raises `PromptTooLong` if the prompt leaves no space in the context. If it leaves less than
        ``sampling.max_tokens``, the sample is shorter, with ``finish="length"``.
        """
        ...


class ChatPolicy(Protocol):
    """A language model behind a chat endpoint: no tokens, so nothing to train on."""

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        """The model's decision. Raises PolicyInfraError if the endpoint fails, never for the model's text.

        Raises `PromptTooLong` if the endpoint says that the prompt is longer than the context.
        """
        ...


class Judge(Protocol):
    """A language model that answers one question at a time."""

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, ModelUsage | None]:
        """The answer and its usage. Raises PolicyInfraError; PromptTooLong if the question does not fit."""
        ...
