"""Tool lists, translated, checked and hashed once: a server lists the same tools for every episode."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import mcp_types

from gymcp.mcp_servers.sanitize import plain_schema, plain_text
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.tools.hashes import combine_hashes, hash_tools
from gymcp.mcp_servers.tools.validation import fault_of_tools
from gymcp.types import Json, Tool

MAX_LIST_CHARS = 2_000_000
"""Characters of one server's list as JSON."""
MAX_KNOWN_CHARS = 16_000_000
"""Characters of all lists that are kept; in memory they take up to ten times that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTools:
    """Tools as a server listed them, and what tells this list from another one."""

    tools: Sequence[mcp_types.Tool]
    sha256: str
    chars: int


def hash_listing(tools: Sequence[mcp_types.Tool]) -> ListedTools:
    """Raises ValueError, in words, for a list that is too long."""
    lines = b"\n".join(tool.model_dump_json().encode() for tool in tools)
    if len(lines) > MAX_LIST_CHARS:
        raise ValueError(f"its tool list has {len(lines)} characters; at most {MAX_LIST_CHARS} are taken")
    return ListedTools(tools=tools, sha256=hashlib.sha256(lines).hexdigest(), chars=len(lines))


class ToolList:
    """A server's list, translated for agents."""

    def __init__(self, told: ListedTools) -> None:
        self.told_sha256, self.chars = told.sha256, told.chars
        self.tools = tuple(map(_tool, told.tools))

    @functools.cached_property
    def sha256(self) -> str:
        return combine_hashes(hash_tools(self.tools))


class ToolListCache:
    """The last ones, as many as have no more than so many characters together."""

    def __init__(self, chars: int) -> None:
        self._room = chars
        self._lists: OrderedDict[tuple[str, ...], ToolList] = OrderedDict()
        """By program and `toolsKey`, which is the hash of the list."""

    def get(self, key: tuple[str, ...]) -> ToolList | None:
        if (known := self._lists.get(key)) is not None:
            self._lists.move_to_end(key)
        return known

    def put(self, key: tuple[str, ...], known: ToolList) -> None:
        if (before := self._lists.pop(key, None)) is not None:
            self._room += before.chars
        self._lists[key] = known
        self._room -= known.chars
        while self._room < 0:
            self._room += self._lists.popitem(last=False)[1].chars


_known = ToolListCache(MAX_KNOWN_CHARS)


def find_list(server: ServerSpec, tools_key: str | None, told: ListedTools | None = None) -> ToolList | None:
    """The list that was told under this key, None where none was yet, or, given what is `told` now, another one."""
    known = _known.get(_key(server, tools_key))
    return known if known is not None and (told is None or known.told_sha256 == told.sha256) else None


def check_and_store_list(server: ServerSpec, tools_key: str | None, told: ListedTools) -> ToolList:
    """From now on the known one. Raises ValueError, in words, where no agent can work with it."""
    checked = ToolList(told)
    if fault := fault_of_tools(checked.tools):
        raise ValueError(fault)
    _known.put(_key(server, tools_key), checked)
    return checked


def compute_tools_key(tools: Json) -> str:
    """The `toolsKey` of the native runtime for what it lists."""
    return hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()


def _key(server: ServerSpec, tools_key: str | None) -> tuple[str, ...]:
    return (*server.argv, *(str(mount.source) for mount in server.mounts), server.url or "", tools_key or "")


def _tool(tool: mcp_types.Tool) -> Tool:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return Tool(
        name=tool.name,
        description=plain_text(tool.description or ""),
        input_schema=plain_schema(tool.input_schema),
        annotations=plain_schema(annotations),
    )
