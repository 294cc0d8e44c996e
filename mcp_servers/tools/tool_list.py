"""Tool lists of servers. A server lists the same tools for every episode, so each list is checked and hashed once."""

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
"""Characters of all lists that are kept. In memory they take up to ten times that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedTools:
    """Tools as a server listed them, with a hash of the list."""

    tools: Sequence[mcp_types.Tool]
    sha256: str
    chars: int


def hash_listing(tools: Sequence[mcp_types.Tool]) -> ListedTools:
    """The tools with hash and size. Raises ValueError, in words, for a list that is too long."""
    lines = b"\n".join(tool.model_dump_json().encode() for tool in tools)
    if len(lines) > MAX_LIST_CHARS:
        raise ValueError(f"its tool list has {len(lines)} characters; at most {MAX_LIST_CHARS} are taken")
    return ListedTools(tools=tools, sha256=hashlib.sha256(lines).hexdigest(), chars=len(lines))


class ToolList:
    """A server's tools, translated for agents."""

    def __init__(self, listed: ListedTools) -> None:
        self.listed_sha256, self.chars = listed.sha256, listed.chars
        self.tools = tuple(map(_to_tool, listed.tools))

    @functools.cached_property
    def sha256(self) -> str:
        return combine_hashes(hash_tools(self.tools))


class ToolListCache:
    """The lists used last, as many as fit into a number of characters."""

    def __init__(self, chars: int) -> None:
        self._free_chars = chars
        self._lists: OrderedDict[tuple[str, ...], ToolList] = OrderedDict()
        """Lists by program and `toolsKey`, the hash of the list."""

    def get(self, key: tuple[str, ...]) -> ToolList | None:
        if (known := self._lists.get(key)) is not None:
            self._lists.move_to_end(key)
        return known

    def put(self, key: tuple[str, ...], known: ToolList) -> None:
        if (before := self._lists.pop(key, None)) is not None:
            self._free_chars += before.chars
        self._lists[key] = known
        self._free_chars -= known.chars
        while self._free_chars < 0:
            self._free_chars += self._lists.popitem(last=False)[1].chars


_known = ToolListCache(MAX_KNOWN_CHARS)


def find_list(server: ServerSpec, tools_key: str | None, listed: ListedTools | None = None) -> ToolList | None:
    """The cached list for this key; None if there is none, or if it differs from `listed`."""
    known = _known.get(_key(server, tools_key))
    return known if known is not None and (listed is None or known.listed_sha256 == listed.sha256) else None


def check_and_store_list(server: ServerSpec, tools_key: str | None, listed: ListedTools) -> ToolList:
    """Check a list and put it into the cache. Raises ValueError, in words, if no agent can work with it."""
    checked = ToolList(listed)
    if fault := fault_of_tools(checked.tools):
        raise ValueError(fault)
    _known.put(_key(server, tools_key), checked)
    return checked


def compute_tools_key(tools: Json) -> str:
    """The `toolsKey` that the native runtime sends for these tools."""
    return hashlib.sha256(json.dumps(tools, sort_keys=True).encode()).hexdigest()


def _key(server: ServerSpec, tools_key: str | None) -> tuple[str, ...]:
    return (*server.argv, *(str(mount.source) for mount in server.mounts), server.url or "", tools_key or "")


def _to_tool(tool: mcp_types.Tool) -> Tool:
    annotations = tool.annotations.model_dump(by_alias=True, exclude_none=True) if tool.annotations else {}
    return Tool(
        name=tool.name,
        description=plain_text(tool.description or ""),
        input_schema=plain_schema(tool.input_schema),
        annotations=plain_schema(annotations),
    )
