"""Layers between an agent and its servers: privileges, retrieval, and stressors that make tools worse.

A layer keeps no state: its behaviour follows from its settings and the `CallContext` alone. So a record can be
replayed, and a copy of an episode continues as the original would.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gymcp.types import Json, Step, Task, Tool, ToolCall, ToolResult

CallNext = Callable[[ToolCall, Mapping[str, Json]], Awaitable[ToolResult]]
"""Passes a call on to the next layer or, behind the last layer, to the server."""


class StopEpisode(Exception):
    """Raised by a layer to refuse a call and to end the episode, which is then graded as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallContext:
    """The point of an episode at which tools are listed or a call is made."""

    task: Task
    seed: int
    turn: int
    steps: Sequence[Step]
    """Steps before the current one."""
    index: int = 0
    """Number of the call within its step, from 0."""
    user_texts: tuple[str, ...] = ()
    """Texts of the user's messages so far, the oldest first."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """Tool name, as the servers offer it -> name of its server."""
    confirm: Callable[[str], Awaitable[bool]]
    """Asks the user for a confirmation; False means no."""
    ask: Callable[[str], Awaitable[str]]
    """Asks the user for a fact."""

    def make_call_rng(self, name: str) -> random.Random:
        """Random generator seeded by the layer's name, the seed, the task, the step and the call, and nothing else."""
        return _make_rng(f"{name}/{self.seed}/{self.task.id}/{len(self.steps)}/{self.index}")

    def make_episode_rng(self, name: str) -> random.Random:
        """Random generator seeded by the layer's name, the seed and the task: the same in the whole episode."""
        return _make_rng(f"{name}/{self.seed}/{self.task.id}")


class Layer(Protocol):
    """One stage between the agent and the servers; it sees every tool list and every call."""

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """The tools as the next outer layer, or the agent, sees them."""
        ...

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        """The result of the call; `tools` are those below this layer. Raises StopEpisode, EnvInfraError."""
        ...

    def settings(self) -> Json:
        """The layer's settings, for the digest of the environment in `run.json`."""
        ...


def refusal(call: ToolCall, why: str) -> ToolResult:
    """An error result for a call that no server has received."""
    return ToolResult(
        call_id=call.id, content=why, is_error=True, content_bytes=len(why.encode("utf-8", "surrogatepass"))
    )


def _make_rng(words: str) -> random.Random:
    return random.Random(hashlib.sha256(words.encode()).digest())
