"""Tool lists, translated, checked and hashed once: a server lists the same tools for every episode."""

from __future__ import annotations

import functools
from collections import OrderedDict
from collections.abc import Sequence

import mcp_types

from gymcp.mcp_servers.plain_text import plain_schema, plain_text
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tool_checks import fault_of_tools
from gymcp.mcp_servers.tool_hashes import hash_of_tools, hash_tools
from gymcp.types import Tool

MAX_KNOWN = 1_000


class ToolList:
    """What a server listed, and what is made of it."""

    def __init__(self, told: Sequence[mcp_types.Tool]) -> None:
        self.told = told
        self.tools = tuple(map(_tool, told))

    @functools.cached_property
    def sha256(self) -> str:
        return hash_of_tools(hash_tools(self.tools))


_known: OrderedDict[tuple[str, ...], ToolList] = OrderedDict()
"""By program and `toolsKey`: a server that lies about it only gets another list of its own."""


def known_list(
    server: ServerSpec, tools_key: str | None, told: Sequence[mcp_types.Tool] | None = None
) -> ToolList | None:
    """The list that was told under this key, None where none was yet, or, given what is `told` now, another one."""
    known = _known.get(_key(server, tools_key))
    return known if known is not None and (told is None or known.told == told) else None


def checked_list(server: ServerSpec, tools_key: str | None, told: Sequence[mcp_types.Tool]) -> ToolList:
    """From now on the known one. Raises ValueError, in words, where no agent can work with it."""
    checked = ToolList(told)
    if fault := fault_of_tools(checked.tools):
        raise ValueError(fault)
    _known[_key(server, tools_key)] = checked
    if len(_known) > MAX_KNOWN:
        _known.popitem(last=False)
    return checked


def _key(server: ServerSpec, tools_key: str | None) -> tuple[str, ...]:
    return (*server.argv, *(str(mount.source) for mount in server.mounts), server.url or "", tools_key or "")


def _tool(tool: mcp_types.Tool) -> Tool:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return Tool(
        name=tool.name,
        description=plain_text(tool.description or ""),
        input_schema=plain_schema(tool.input_schema),
        annotations=annotations,
    )
