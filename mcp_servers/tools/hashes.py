"""Hashes of what a server's tools look like, fine enough to say which tool and which parameter has changed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gymcp.mcp_servers.digest import digest
from gymcp.types import Json, Tool

SHORT = 16
"""Hex digits of the hash of a part; the whole tool has a full one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolHashes:
    """Of one tool. Every hash is over canonical JSON, so the order of keys does not matter."""

    sha256: str
    """Of the whole tool."""
    description: str
    schema: str
    """Of the input schema without its properties."""
    annotations: str
    params: Mapping[str, str] = field(default_factory=dict)
    """Of each property of the input schema."""

    def to_row(self) -> dict[str, Any]:
        """As a table of the lock."""
        parts = {"description": self.description, "schema": self.schema, "annotations": self.annotations}
        return {"sha256": self.sha256, **parts, "params": dict(sorted(self.params.items()))}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ToolHashes:
        """The hashes of a tool's table. Raises TypeError or ValueError for what is none."""
        found = cls(**row)
        parts = (found.sha256, found.description, found.schema, found.annotations, *dict(found.params).values())
        if not all(isinstance(part, str) and re.fullmatch("[0-9a-f]{1,64}", part) for part in parts):
            raise ValueError("the hashes of a tool are not hex digits")
        return found


def hash_tools(tools: Iterable[Tool]) -> dict[str, ToolHashes]:
    """Hashes by tool name."""
    return {tool.name: _hash_tool(tool) for tool in tools}


def combine_hashes(tools: Mapping[str, ToolHashes]) -> str:
    """One hash over all of them, whatever their order."""
    return digest({name: hashes.to_row() for name, hashes in tools.items()})


def differences(locked: Mapping[str, ToolHashes], found: Mapping[str, ToolHashes]) -> Iterator[str]:
    """In words, what is not as it was locked: which tool, and which part of it."""
    for name in sorted(locked.keys() - found.keys()):
        yield f"tool '{name}' is gone"
    for name in sorted(found.keys() - locked.keys()):
        yield f"tool '{name}' is new"
    for name in sorted(locked.keys() & found.keys()):
        was, now = locked[name], found[name]
        if was.sha256 != now.sha256:
            parts = list(_changed_parts(was, now)) or ["changed"]
            yield f"tool '{name}': {', '.join(parts)}"


def _changed_parts(was: ToolHashes, now: ToolHashes) -> Iterator[str]:
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
    found = schema.pop("properties", {})
    properties = found if isinstance(found, Mapping) else {}
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
    return digest(value)[:SHORT]
