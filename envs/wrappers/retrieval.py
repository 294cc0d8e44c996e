"""Retrieval: few tools out of many, by the user's request, and a search tool with which the agent finds others.

An agent is offered `search_tools`, the tools that fit the user's last message best, those it has found and those it has
called, within a budget of characters. So a prompt stays short however many servers are attached. The selection follows
from the recorded steps alone, so that a replay offers the same tools. Retrieval is part of the environment, so it works
with every agent.

Sources: retrieval by the request, RAG-MCP, arXiv:2505.03275; a search tool that the agent itself asks, MCP-Zero,
arXiv:2506.01056, and the tool-search tools of model vendors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from gymcp.envs.layers import CallContext, CallNext, refusal
from gymcp.envs.wrappers.bm25 import rank_tools
from gymcp.errors import ConfigError
from gymcp.types import Json, Tool, ToolCall, ToolResult

SEARCH = "search_tools"
TOOLS_PER_SEARCH = 5
"""Most tools that one search adds to those on offer."""
SEARCH_TOOL = Tool(
    name=SEARCH,
    description="Find more tools: there are many others than those on offer now. Those found can then be called.",
    input_schema={
        "type": "object",
        "properties": {"query": {"type": "string", "description": "What a tool is to do, in a few words."}},
        "required": ["query"],
        "additionalProperties": False,
    },
    annotations={"readOnlyHint": True},
)
_MARK = "- "
"""Begin of a line that names a found tool in the result of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """The layer that selects tools. It is the outermost, so that it searches what the agent would see without it."""

    top_k: int = 10
    """Most tools that are offered because of the user's last message."""
    budget: int = 12_000
    """Most characters of all definitions on offer, as JSON; a token has about four."""

    def filter_tools(self, context: CallContext, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        by_name = {tool.name: tool for tool in tools}
        requested = [tool.name for tool in self._rank_by_request(context, tools)]
        shown_names = [name for name in _list_found(context) if name in by_name]
        called = [name for name in _list_called(context) if name in by_name]
        remaining = self.budget - definition_chars(SEARCH_TOOL)
        selected = set()
        for name in dict.fromkeys([*reversed(called), *reversed(shown_names), *requested]):
            size = definition_chars(by_name[name])
            if size <= remaining:
                remaining -= size
                selected.add(name)
        # in the order in which they were added, so that a prompt mostly grows at its end
        in_order = dict.fromkeys([*requested, *shown_names, *called])
        return (SEARCH_TOOL, *(by_name[name] for name in in_order if name in selected))

    async def handle_call(
        self,
        context: CallContext,
        call: ToolCall,
        arguments: Mapping[str, Json],
        tools: tuple[Tool, ...],
        call_next: CallNext,
    ) -> ToolResult:
        if call.name != SEARCH:
            return await call_next(call, arguments)
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return refusal(call, f"{SEARCH}: give the text 'query': what a tool is to do")
        offered = {tool.name for tool in self.filter_tools(context, tools)}
        ranked = rank_tools(tools, query, context.servers)
        hits = [tool for tool in ranked if tool.name not in offered][:TOOLS_PER_SEARCH]
        lines = [f"{_MARK}{tool.name}: {' '.join(tool.description.split())}" for tool in hits]
        text = "\n".join(["These can be called now:", *lines]) if hits else "No other tool fits; try other words."
        return ToolResult(call_id=call.id, content=text, content_bytes=len(text.encode()))

    def _rank_by_request(self, context: CallContext, tools: tuple[Tool, ...]) -> list[Tool]:
        """The tools that fit the user's last message, the best first."""
        return rank_tools(tools, context.user_texts[-1], context.servers)[: self.top_k] if context.user_texts else []

    def settings(self) -> Json:
        return {"Retrieval": asdict(self)}


def definition_chars(tool: Tool) -> int:
    """Characters of the tool's definition, as chat templates receive it."""
    return len(json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.input_schema}))


def plan_retrieval(top_k: int | None, budget: int | None) -> Retrieval | None:
    """The retrieval by the options of the command line; None if there is none. Raises ConfigError."""
    if top_k is None and budget is not None:
        raise ConfigError("--tool-budget: of the tools that are retrieved; say how many with --retrieve")
    if top_k is None:
        return None
    return Retrieval(top_k=top_k) if budget is None else Retrieval(top_k=top_k, budget=budget)


def check_retrieval(retrieval: Retrieval, tools: Sequence[Tool]) -> None:
    """Raises ConfigError if some tool could never be offered, or has the name of the search tool."""
    if retrieval.top_k < 0:
        raise ConfigError(f"retrieval: top_k must be 0 (only what is searched for) or more, not {retrieval.top_k}")
    if any(tool.name == SEARCH for tool in tools):
        raise ConfigError(f"retrieval: a server has a tool named '{SEARCH}' itself, which the agent would mistake")
    largest = max(tools, key=definition_chars)
    least = definition_chars(SEARCH_TOOL) + definition_chars(largest)
    if retrieval.budget < least:
        raise ConfigError(
            f"retrieval: a budget of {retrieval.budget} characters is too small: '{SEARCH}' and the largest tool, "
            f"'{largest.name}', need {least}"
        )


def _list_called(context: CallContext) -> Iterator[str]:
    """Names of the tools that were called while on offer: a guessed name does not add a tool."""
    for step in context.steps:
        offered = {tool.name for tool in step.observation.tools}
        yield from (call.name for call in step.action.tool_calls if call.name in offered)


def _list_found(context: CallContext) -> Iterator[str]:
    """Names of the tools that searches have found, from the recorded results."""
    for step in context.steps:
        for call, result in zip(step.action.tool_calls, step.results, strict=False):
            if call.name == SEARCH and not result.is_error:
                lines = result.content.splitlines()
                yield from (line.removeprefix(_MARK).partition(": ")[0] for line in lines if line.startswith(_MARK))
