"""The tools of several servers as one list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gymcp.envs.episodes.lazy_server import LazyServer
from gymcp.envs.spec import EnvSpec
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import Json, Tool, ToolCall, ToolResult


@dataclass(frozen=True, slots=True)
class _Entry:
    tool: Tool
    """The tool under the name that is offered."""
    server: ToolSession | LazyServer
    own_name: str
    """The tool's name on its server."""


class Toolbox:
    """Tools of several servers by name; a name that several servers use is qualified: ``server__tool``."""

    def __init__(
        self,
        servers: Sequence[ToolSession | LazyServer],
        allowed: frozenset[str] | None,
        excluded: frozenset[str] = frozenset(),
    ) -> None:
        """`allowed`: the names to offer, None: all. `excluded`: names to leave out in any case."""
        uses = Counter(tool.name for server in servers for tool in server.tools)
        self._entries: dict[str, _Entry] = {}
        self._servers: dict[str, str] = {}
        self._lists: dict[frozenset[str], tuple[Tool, ...]] = {}
        for server in servers:
            for tool in server.tools:
                name = tool.name if uses[tool.name] == 1 else f"{server.spec.name}__{tool.name}"
                if (allowed is None or name in allowed) and name not in excluded:
                    # the same object in every episode if possible: what is derived from a tool is cached by identity
                    offered = tool if name == tool.name else replace(tool, name=name)
                    self._entries[name] = _Entry(offered, server, tool.name)
                    self._servers[name] = server.spec.name

    @property
    def servers(self) -> dict[str, str]:
        """Tool name, as offered -> name of its server."""
        return self._servers

    def list_tools(self, withheld: frozenset[str]) -> tuple[Tool, ...]:
        """All tools except the withheld ones; the same tuple for the same `withheld`."""
        if withheld not in self._lists:
            self._lists[withheld] = tuple(entry.tool for name, entry in self._entries.items() if name not in withheld)
        return self._lists[withheld]

    async def dispatch(self, call: ToolCall, arguments: Mapping[str, Json], *, timeout_s: float) -> ToolResult:
        """The result of the call from the tool's server. Raises KeyError for a name not on offer, EnvInfraError."""
        entry = self._entries[call.name]
        return await entry.server.call_tool(replace(call, name=entry.own_name), arguments, timeout_s=timeout_s)


def agents_toolbox(spec: EnvSpec, servers: Sequence[ToolSession | LazyServer]) -> Toolbox:
    """The tools that the agent may be offered, before any layer: never a tool of the user's."""
    return Toolbox(servers, spec.tools, excluded=spec.user_tools)


def users_toolbox(spec: EnvSpec, servers: Sequence[ToolSession | LazyServer]) -> Toolbox:
    """The tools that only the user has."""
    return Toolbox(servers, spec.user_tools)
