"""What may stand between an agent and its servers: privileges, and whatever makes tools worse than they are.

A layer keeps nothing: what it does follows from its own settings and the scene, so that a record can be run again, and
a copy of an episode goes on as the original would.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gymcp.types import Json, Step, Task, Tool, ToolCall, ToolResult

GoOn = Callable[[ToolCall, Mapping[str, Json]], Awaitable[ToolResult]]
"""The call as the next layer, and at last the server, gets it."""


class StopEpisode(Exception):
    """Raised by a layer: the call is refused and the episode ends here, graded as it stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """Where in which episode a call is made."""

    task: Task
    seed: int
    turn: int
    steps: Sequence[Step]
    """What has happened before this step."""
    index: int = 0
    """Of the call in its step."""
    said: tuple[str, ...] = ()
    """What the user has said until now."""
    servers: Mapping[str, str] = field(default_factory=dict)
    """By name of a tool as the servers offer it, the name of its server."""
    confirm: Callable[[str], Awaitable[bool]]
    """Asks the user, who may say no."""
    ask: Callable[[str], Awaitable[str]]
    """Asks the user for a fact."""

    def draw(self, name: str) -> random.Random:
        """Chance that depends on the layer's name, the seed, task, step and call, and on nothing else."""
        return self._drawn(f"{name}/{self.seed}/{self.task.id}/{len(self.steps)}/{self.index}")

    def draw_once(self, name: str) -> random.Random:
        """The same chance in the whole episode."""
        return self._drawn(f"{name}/{self.seed}/{self.task.id}")

    def _drawn(self, words: str) -> random.Random:
        return random.Random(hashlib.sha256(words.encode()).digest())


class Layer(Protocol):
    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        """The tools as the agent is to see them."""
        ...

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        """What comes of the call; `tools` are those below this layer. Raises StopEpisode, EnvInfraError."""
        ...

    def settings(self) -> Json:
        """What `run.json` keeps of it."""
        ...


def refusal(call: ToolCall, why: str) -> ToolResult:
    """An error result that no server has seen."""
    return ToolResult(call_id=call.id, content=why, is_error=True, bytes=len(why.encode("utf-8", "surrogatepass")))
