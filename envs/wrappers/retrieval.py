"""Few tools out of many: those that the user's words are about, and a tool with which the agent finds others.

Of all tools an agent is shown `search_tools`, what fits the user's words best, what it has found and what it has
called, within a budget of characters: a prompt stays short however many servers are attached. What is shown follows
from the recorded steps alone, so a replay shows the same. It works with every agent, since it stands before the
environment.

Sources: retrieval by the request, RAG-MCP, arXiv:2505.03275; a search tool that the agent itself asks, MCP-Zero,
arXiv:2506.01056, and the tool-search tools of model vendors.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from gymcp.envs.layers import GoOn, Scene, refusal
from gymcp.envs.wrappers.bm25 import rank_tools
from gymcp.errors import ConfigError
from gymcp.types import Json, Tool, ToolCall, ToolResult

SEARCH = "search_tools"
FOUND = 5
"""Tools that one search puts on offer."""
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
"""Begins the line of a found tool in the answer of a search."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retrieval:
    """A layer; the outermost, so that it searches what the agent would see without it."""

    top_k: int = 10
    """Tools for each user turn, by the user's words."""
    budget: int = 12_000
    """Characters of all definitions on offer, as JSON: some four to a token."""

    def offer(self, scene: Scene, tools: tuple[Tool, ...]) -> tuple[Tool, ...]:
        by_name = {tool.name: tool for tool in tools}
        asked = [tool.name for tool in self._by_words(scene, tools)]
        found = [name for name in _found(scene) if name in by_name]
        called = [name for name in _called(scene) if name in by_name]
        left = self.budget - size_of(SEARCH_TOOL)
        kept = set()
        for name in dict.fromkeys([*reversed(called), *reversed(found), *asked]):
            size = size_of(by_name[name])
            if size <= left:
                left -= size
                kept.add(name)
        # in the order in which they came, so that a prompt mostly grows at its end
        return (SEARCH_TOOL, *(by_name[name] for name in dict.fromkeys([*asked, *found, *called]) if name in kept))

    async def call(
        self, scene: Scene, call: ToolCall, arguments: Mapping[str, Json], tools: tuple[Tool, ...], go_on: GoOn
    ) -> ToolResult:
        if call.name != SEARCH:
            return await go_on(call, arguments)
        query = arguments.get("query")
        if not isinstance(query, str) or not query.strip():
            return refusal(call, f"{SEARCH}: give the text 'query': what a tool is to do")
        shown = {tool.name for tool in self.offer(scene, tools)}
        hits = [tool for tool in rank_tools(tools, query, scene.servers) if tool.name not in shown][:FOUND]
        lines = [f"{_MARK}{tool.name}: {' '.join(tool.description.split())}" for tool in hits]
        text = "\n".join(["These can be called now:", *lines]) if hits else "No other tool fits; try other words."
        return ToolResult(call_id=call.id, content=text, bytes=len(text.encode()))

    def _by_words(self, scene: Scene, tools: tuple[Tool, ...]) -> list[Tool]:
        """Of what the user has said last."""
        return rank_tools(tools, scene.said[-1], scene.servers)[: self.top_k] if scene.said else []

    def settings(self) -> Json:
        return {"Retrieval": asdict(self)}


def size_of(tool: Tool) -> int:
    """Characters of its definition, as models' templates get it."""
    return len(json.dumps({"name": tool.name, "description": tool.description, "parameters": tool.input_schema}))


def plan_retrieval(top_k: int | None, budget: int | None) -> Retrieval | None:
    """From the options of the command line; None where tools are not retrieved. Raises ConfigError."""
    if top_k is None and budget is not None:
        raise ConfigError("--tool-budget: of the tools that are retrieved; say how many with --retrieve")
    if top_k is None:
        return None
    return Retrieval(top_k=top_k) if budget is None else Retrieval(top_k=top_k, budget=budget)


def check_retrieval(retrieval: Retrieval, tools: Sequence[Tool]) -> None:
    """Raises ConfigError where not every tool could ever be offered, or one is called as the search."""
    if retrieval.top_k < 0:
        raise ConfigError(f"retrieval: top_k must be 0 (only what is searched for) or more, not {retrieval.top_k}")
    if any(tool.name == SEARCH for tool in tools):
        raise ConfigError(f"retrieval: a server has a tool named '{SEARCH}' itself, which the agent would mistake")
    largest = max(tools, key=size_of)
    least = size_of(SEARCH_TOOL) + size_of(largest)
    if retrieval.budget < least:
        raise ConfigError(
            f"retrieval: a budget of {retrieval.budget} characters is too small: '{SEARCH}' and the largest tool, "
            f"'{largest.name}', need {least}"
        )


def _called(scene: Scene) -> Iterator[str]:
    """The names of the tools that were called while they were on offer: to guess a name brings nothing."""
    for step in scene.steps:
        offered = {tool.name for tool in step.observation.tools}
        yield from (call.name for call in step.action.tool_calls if call.name in offered)


def _found(scene: Scene) -> Iterator[str]:
    """The names that searches have told, as they are recorded."""
    for step in scene.steps:
        for call, result in zip(step.action.tool_calls, step.results, strict=False):
            if call.name == SEARCH and not result.is_error:
                lines = result.content.splitlines()
                yield from (line.removeprefix(_MARK).partition(": ")[0] for line in lines if line.startswith(_MARK))
