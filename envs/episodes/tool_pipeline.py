"""The way of a call from the agent, through every layer, to a server, and of the servers' tools to the agent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from gymcp.envs.episodes.call_validation import check_call
from gymcp.envs.episodes.toolbox import Toolbox
from gymcp.envs.layers import Layer, Scene, refusal
from gymcp.envs.spec import EnvSpec
from gymcp.types import EpisodeLimits, Json, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """Of one world's servers."""

    spec: EnvSpec
    limits: EpisodeLimits
    toolbox: Toolbox

    def offered(self, scene: Scene) -> tuple[Tool, ...]:
        """What the agent sees."""
        return self._lists(scene)[-1]

    def _lists(self, scene: Scene) -> list[tuple[Tool, ...]]:
        """The servers' tools, and what each layer makes of them."""
        task, turn = scene.task, scene.turn
        withheld = task.withheld[turn] if turn < len(task.withheld) else frozenset[str]()
        lists = [self.toolbox.offered(withheld)]
        for layer in self.spec.layers:
            lists.append(layer.offer(scene, lists[-1]))
        return lists

    async def call(self, scene: Scene, call: ToolCall, offered: tuple[Tool, ...]) -> ToolResult:
        """What comes of a call by somebody to whom these tools were `offered`. Raises StopEpisode, EnvInfraError."""
        arguments = check_call(call, offered, self.limits.argument_bytes)
        if isinstance(arguments, str):
            return refusal(call, arguments)
        return await self._through(self.spec.layers, scene, call, arguments)

    async def _through(
        self, layers: tuple[Layer, ...], scene: Scene, call: ToolCall, arguments: Mapping[str, Json]
    ) -> ToolResult:
        """From the outermost layer, which is the last, to the server."""
        if not layers:
            result = await self.toolbox.call(call, arguments, timeout_s=self.limits.call_timeout_s)
            return replace(result, cost=self.spec.cost(call.name))

        async def go_on(call: ToolCall, arguments: Mapping[str, Json]) -> ToolResult:
            return await self._through(layers[:-1], scene, call, arguments)

        below = self._lists(replace(scene, index=0))[len(layers) - 1]
        return await layers[-1].call(scene, call, arguments, below, go_on)
