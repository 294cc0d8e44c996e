"""The way of a call from the agent through all layers to a server, and of the servers' tools to the agent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gymcp.envs.episodes.call_validation import check_call
from gymcp.envs.layers import CallContext, Layer, refusal
from gymcp.envs.tool_costs import ToolCosts
from gymcp.envs.worlds.toolbox import Toolbox
from gymcp.types import EpisodeLimits, Json, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolPipeline:
    """The layers of an environment in front of the tools of one world."""

    layers: tuple[Layer, ...]
    """The innermost layer, which is next to the servers, first."""
    toolbox: Toolbox
    limits: EpisodeLimits
    costs: ToolCosts
    """Costs of the tools, by the names that the servers give them."""

    def tools_per_layer(self, context: CallContext) -> list[tuple[Tool, ...]]:
        """The servers' tools, then the tools behind each layer; the agent sees the last."""
        task, turn = context.task, context.turn
        lists = [self.toolbox.list_tools(task.offer.withheld_in(turn))]
        for layer in self.layers:
            lists.append(layer.filter_tools(context, lists[-1]))
        return lists

    async def run(
        self,
        context: CallContext,
        call: ToolCall,
        offered: tuple[Tool, ...],
        tools_per_layer: Sequence[tuple[Tool, ...]],
    ) -> ToolResult:
        """The result of a call by an agent that has seen the tools `offered`.

        `tools_per_layer`: the lists of this step. A call that is not valid is refused before any layer sees it. Raises
        StopEpisode, EnvInfraError.
        """
        arguments = check_call(call, offered, self.limits.argument_bytes)
        if isinstance(arguments, str):
            return refusal(call, arguments)
        return await self._next(len(self.layers), context, call, arguments, tools_per_layer)

    async def _next(
        self,
        remaining: int,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools_per_layer: Sequence[tuple[Tool, ...]],
    ) -> ToolResult:
        """Passes the call through the innermost `remaining` layers, the outermost of them first, to the server."""
        if remaining == 0:
            result = await self.toolbox.dispatch(call, arguments, timeout_s=self.limits.call_timeout_s)
            return replace(result, cost=self.costs.of_tool(call.name).money)

        async def call_next(call: ToolCall, arguments: Mapping[str, Json]) -> ToolResult:
            return await self._next(remaining - 1, context, call, arguments, tools_per_layer)

        below = remaining - 1
        return await self.layers[below].handle_call(context, call, arguments, tools_per_layer[below], call_next)


async def run_without_layers(toolbox: Toolbox, call: ToolCall, limits: EpisodeLimits) -> ToolResult:
    """The result of a call of one of the toolbox's tools that no layer sees. Raises EnvInfraError."""
    arguments = check_call(call, toolbox.list_tools(frozenset()), limits.argument_bytes)
    if isinstance(arguments, str):
        return refusal(call, arguments)
    return await toolbox.dispatch(call, arguments, timeout_s=limits.call_timeout_s)
