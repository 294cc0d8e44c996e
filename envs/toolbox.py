"""The tools of several servers as one list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gymcp.mcp_servers.session import ToolSession
from gymcp.types import Json, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    """As it is offered."""
    session: ToolSession
    own_name: str


class Toolbox:
    """Names that more than one server uses are qualified: ``server__tool``."""

    def __init__(self, sessions: Sequence[ToolSession], allowed: frozenset[str] | None) -> None:
        uses = Counter(tool.name for session in sessions for tool in session.tools)
        self._entries: dict[str, _Entry] = {}
        self._offers: dict[frozenset[str], tuple[Tool, ...]] = {}
        for session in sessions:
            for tool in session.tools:
                name = tool.name if uses[tool.name] == 1 else f"{session.spec.name}__{tool.name}"
                if allowed is None or name in allowed:
                    # the same object in every episode, where it can be: what is made of it is kept by identity
                    offered = tool if name == tool.name else replace(tool, name=name)
                    self._entries[name] = _Entry(offered, session, tool.name)

    def offered(self, withheld: frozenset[str]) -> tuple[Tool, ...]:
        """All tools but the withheld ones; the same tuple for the same question."""
        if withheld not in self._offers:
            self._offers[withheld] = tuple(entry.tool for name, entry in self._entries.items() if name not in withheld)
        return self._offers[withheld]

    async def call(self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float) -> ToolResult:
        """The result of the tool behind the name on offer. Raises KeyError for another name, EnvInfraError."""
        entry = self._entries[call.name]
        return await entry.session.call(replace(call, name=entry.own_name), arguments, timeout_s=timeout_s)
