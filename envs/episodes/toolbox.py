"""The tools of several servers as one list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gymcp.envs.episodes.lazy_server import LateServer
from gymcp.envs.spec import EnvSpec
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import Json, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    """As it is offered."""
    server: ToolSession | LateServer
    own_name: str


class Toolbox:
    """Names that more than one server uses are qualified: ``server__tool``."""

    def __init__(
        self,
        servers: Sequence[ToolSession | LateServer],
        allowed: frozenset[str] | None,
        but: frozenset[str] = frozenset(),
    ) -> None:
        uses = Counter(tool.name for server in servers for tool in server.tools)
        self._entries: dict[str, _Entry] = {}
        self._servers: dict[str, str] = {}
        self._offers: dict[frozenset[str], tuple[Tool, ...]] = {}
        for server in servers:
            for tool in server.tools:
                name = tool.name if uses[tool.name] == 1 else f"{server.spec.name}__{tool.name}"
                if (allowed is None or name in allowed) and name not in but:
                    # the same object in every episode, where it can be: what is made of it is kept by identity
                    offered = tool if name == tool.name else replace(tool, name=name)
                    self._entries[name] = _Entry(offered, server, tool.name)
                    self._servers[name] = server.spec.name

    @property
    def servers(self) -> dict[str, str]:
        """By name of a tool on offer, the name of its server."""
        return self._servers

    def offered(self, withheld: frozenset[str]) -> tuple[Tool, ...]:
        """All tools but the withheld ones; the same tuple for the same question."""
        if withheld not in self._offers:
            self._offers[withheld] = tuple(entry.tool for name, entry in self._entries.items() if name not in withheld)
        return self._offers[withheld]

    async def call(self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float) -> ToolResult:
        """The result of the tool behind the name on offer. Raises KeyError for another name, EnvInfraError."""
        entry = self._entries[call.name]
        return await entry.server.call_tool(replace(call, name=entry.own_name), arguments, timeout_s=timeout_s)


def agents_toolbox(spec: EnvSpec, servers: Sequence[ToolSession | LateServer]) -> Toolbox:
    """What the agent may be offered, before any layer: never a tool of the user's."""
    return Toolbox(servers, spec.tools, but=spec.user_tools)


def users_toolbox(spec: EnvSpec, servers: Sequence[ToolSession | LateServer]) -> Toolbox:
    """What only the user has."""
    return Toolbox(servers, spec.user_tools)
