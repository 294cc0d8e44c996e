"""What a layer may ask of one above it. `gymcp.cli` wires the two together."""

from __future__ import annotations

from typing import Protocol

from gymcp.types import Action, Json, Message, Observation, Score, Task, Trajectory


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

    async def act(self, observation: Observation) -> Action: ...


class AgentFactory(Protocol):
    """Makes the agent of one episode. Only scripted agents look at the task's gold."""

    def __call__(self, task: Task, seed: int) -> Agent: ...


class User(Protocol):
    """Answers when the agent speaks."""

    async def reply(self, said: str) -> Message | None:
        """The user's next message, or None when they have nothing left to ask."""
        ...
