"""What a layer may ask of one above it. `gymcp.cli` wires the two together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from gymcp.types import (
    Action,
    Decision,
    GiveUp,
    Json,
    Message,
    Observation,
    Sampled,
    Sampling,
    Score,
    Spent,
    Task,
    Tool,
    Trajectory,
    UserView,
)


class StateReader(Protocol):
    """Reads recorded states by their content address."""

    def __call__(self, ref: str, /) -> Json:
        """The state recorded under `ref`. Raises KeyError where there is none."""
        ...


class Grader(Protocol):
    """A pure function of the record: the same trajectory gets the same score, offline, for ever."""

    def __call__(self, task: Task, trajectory: Trajectory, states: StateReader) -> Score: ...


class Agent(Protocol):
    """Lives for one episode."""

    async def act(self, observation: Observation) -> Action | Decision | GiveUp:
        """Raises PolicyInfraError where its model cannot be reached."""
        ...


class AgentFactory(Protocol):
    """Makes the agent of one episode. Only scripted agents look at the task's gold."""

    def __call__(self, task: Task, seed: int) -> Agent: ...


class User(Protocol):
    """Speaks first, and answers when the agent speaks.

    Keeps nothing from one answer to the next: what they do follows from the talk alone, so that an episode can be gone
    on from at any point of it.
    """

    async def reply(self, view: UserView) -> Action | Decision | None:
        """What the user says next, or calls of `UserView.tools` to make before.

        None, or a decision that neither says nor calls anything: they have nothing left to say, and leave.

        Raises PolicyInfraError where their model cannot be reached.
        """
        ...


@runtime_checkable
class Confirms(Protocol):
    """A user who can be asked whether something may be done. Of others the answer is no."""

    async def confirm(self, question: str) -> bool: ...


@runtime_checkable
class Answers(Protocol):
    """A user who can be asked for facts. Of others nothing is to be had."""

    async def answer_question(self, question: str) -> str: ...


class Policy(Protocol):
    """A language model, tokens in and tokens out. What it knows of an earlier prompt it may keep: prompts only grow."""

    async def sample(self, prompt_ids: Sequence[int], sampling: Sampling) -> Sampled:
        """Raises PolicyInfraError where the engine fails, never for what the model says.

        `PromptTooLong` where the prompt leaves no room in the context; fewer than ``sampling.max_tokens`` tokens where
        it leaves less, with ``finish="length"``.
        """
        ...


class ChatPolicy(Protocol):
    """A language model behind a chat endpoint: no tokens, so nothing to train on."""

    async def chat(self, messages: Sequence[Message], tools: Sequence[Tool], sampling: Sampling) -> Decision:
        """Raises PolicyInfraError where the endpoint fails, never for what the model says.

        `PromptTooLong` where the endpoint says that the prompt is longer than the context.
        """
        ...


class Judge(Protocol):
    """A language model that is asked one thing, once."""

    async def ask(self, messages: Sequence[Message], sampling: Sampling) -> tuple[str, Spent | None]:
        """What it says, and what that took. Raises PolicyInfraError; PromptTooLong where the question does not fit."""
        ...
