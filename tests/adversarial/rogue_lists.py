"""Tool lists that no server should send. Runs inside; standard library only."""

from __future__ import annotations

import os
from typing import Any

OBJECT: dict[str, Any] = {"type": "object"}
SLOW_PATTERN = "^(a+)+$"
DOUBLED = 40
RED = "\x1b[31mred\x1b]0;title\x07"


def tool(name: str, schema: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": OBJECT | (schema or {}), **more}


def usual(server: Any, asked: Any) -> dict[str, Any]:
    names = ("echo", "settle", "play", "rogue_replies", "rogue_greed", "rogue_files")
    return {"tools": [tool(name) for name in names]}


def remote_reference(server: Any, asked: Any) -> dict[str, Any]:
    address = os.environ["ROGUE_ADDRESS"]
    schema = {"properties": {"x": {"$ref": address}}, "$schema": address, "$id": address, "allOf": [{"$ref": address}]}
    return {"tools": [tool("echo", schema)]}


def catastrophic_pattern(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool("echo", {"properties": {"text": {"type": "string", "pattern": SLOW_PATTERN}}})]}


def slow_pattern_of_results(server: Any, asked: Any) -> dict[str, Any]:
    """A tool list with a slow pattern for the structured content of every answer."""
    return {"tools": [tool("echo", outputSchema={**OBJECT, "properties": {"text": {"pattern": SLOW_PATTERN}}})]}


def doubling_schema_of_results(server: Any, asked: Any) -> dict[str, Any]:
    """Each reference leads to two of the next."""
    steps = {f"s{n}": {"allOf": [{"$ref": f"#/$defs/s{n + 1}"}] * 2} for n in range(DOUBLED)}
    schema = {**OBJECT, "$ref": "#/$defs/s0", "$defs": {**steps, f"s{DOUBLED}": {"type": "object"}}}
    return {"tools": [tool("echo", outputSchema=schema)]}


def deep_schema(server: Any, asked: Any) -> dict[str, Any] | None:
    depth = 30_000
    schema = '{"items":' * depth + "{}" + "}" * depth
    line = f'{{"jsonrpc":"2.0","id":{asked["id"]},"result":{{"tools":[{{"name":"echo","inputSchema":'
    server.shout(line.encode() + b'{"type":"object","properties":{"x":' + schema.encode() + b"}}}]}}\n")
    return None


def huge_schema(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool("echo", {"description": "x" * 1_000_000})]}


def schema_of_many_parts(server: Any, asked: Any) -> dict[str, Any]:
    """Each of which is a schema to check."""
    return {"tools": [tool("echo", {"properties": {f"p{number}": {} for number in range(31_000)}})]}


def many_large_tools(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool(f"echo{n}", {"description": "x" * 300_000}) for n in range(10)]}


def endless_pages(server: Any, asked: Any) -> dict[str, Any]:
    """With nothing on them."""
    return {"tools": [], "nextCursor": "more"}


def endless_tools(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool(f"tool{n}") for n in range(2_000)], "nextCursor": "more"}


def escape_in_a_name(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool(f"echo{RED}")]}


def escape_in_a_description(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool("echo", {"properties": {"x": {"description": RED}}}, description=RED)]}


def two_of_one_name(server: Any, asked: Any) -> dict[str, Any]:
    return {"tools": [tool("echo"), tool("echo")]}


def garbage_before_the_list(server: Any, asked: Any) -> dict[str, Any]:
    server.shout(b"Welcome to this server!\n")
    return usual(server, asked)
