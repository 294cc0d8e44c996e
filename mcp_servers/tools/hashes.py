"""Hashes of a server's tools, fine enough to tell which tool and which parameter has changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gymcp.mcp_servers.digest import digest
from gymcp.types import Json, Tool

PART_HASH_DIGITS = 16
"""Hex digits of the hash of a part; the whole tool has a full one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHashes:
    """Hashes of one tool. Each is over canonical JSON, so the order of keys does not matter."""

    sha256: str
    """Hash of the whole tool."""
    description: str
    schema: str
    """Hash of the input schema without its properties."""
    annotations: str
    params: Mapping[str, str] = field(default_factory=dict)
    """Hash of each property of the input schema, by its name."""

    def to_row(self) -> dict[str, Any]:
        """The hashes as a table of the lock."""
        parts = {"description": self.description, "schema": self.schema, "annotations": self.annotations}
        return {"sha256": self.sha256, **parts, "params": dict(sorted(self.params.items()))}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ToolHashes:
        """The hashes in a table of the lock. Raises TypeError or ValueError for a malformed one."""
        tool = cls(**row)
        parts = (tool.sha256, tool.description, tool.schema, tool.annotations, *dict(tool.params).values())
        if not all(isinstance(part, str) and re.fullmatch("[0-9a-f]{1,64}", part) for part in parts):
            raise ValueError("the hashes of a tool are not hex digits")
        return tool


def hash_tools(tools: Iterable[Tool]) -> dict[str, ToolHashes]:
    """Hashes by tool name."""
    return {tool.name: _hash_tool(tool) for tool in tools}


def combine_hashes(tools: Mapping[str, ToolHashes]) -> str:
    """One hash over all tools. Their order does not matter."""
    return digest({name: hashes.to_row() for name, hashes in tools.items()})


def differences(locked: Mapping[str, ToolHashes], listed: Mapping[str, ToolHashes]) -> Iterator[str]:
    """Differences from the lock in words: which tool, and which part of it."""
    for name in sorted(locked.keys() - listed.keys()):
        yield f"tool '{name}' is gone"
    for name in sorted(listed.keys() - locked.keys()):
        yield f"tool '{name}' is new"
    for name in sorted(locked.keys() & listed.keys()):
        was, now = locked[name], listed[name]
        if was.sha256 != now.sha256:
            parts = list(_part_differences(was, now)) or ["changed"]
            yield f"tool '{name}': {', '.join(parts)}"


def _part_differences(was: ToolHashes, now: ToolHashes) -> Iterator[str]:
    for param in sorted(was.params.keys() | now.params.keys()):
        if param not in now.params:
            yield f"parameter '{param}' is gone"
        elif param not in was.params:
            yield f"parameter '{param}' is new"
        elif was.params[param] != now.params[param]:
            yield f"parameter '{param}' has changed"
    if was.schema != now.schema:
        yield "its schema has changed beside the parameters"
    if was.description != now.description:
        yield "its description has changed"
    if was.annotations != now.annotations:
        yield "its annotations have changed"


def _hash_tool(tool: Tool) -> ToolHashes:
    schema = dict(tool.input_schema)
    value = schema.pop("properties", {})
    properties = value if isinstance(value, Mapping) else {}
    whole = {
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "annotations": tool.annotations,
    }
    return ToolHashes(
        sha256=digest(whole),
        description=_short(tool.description),
        schema=_short(schema),
        annotations=_short(tool.annotations),
        params={name: _short(value) for name, value in properties.items()},
    )


def _short(value: Json) -> str:
    return digest(value)[:PART_HASH_DIGITS]
