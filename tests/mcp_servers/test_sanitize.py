"""No output of a server can control the terminal that shows it."""

from __future__ import annotations

import asyncio

import pytest

from gymcp.errors import ServerDied
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sanitize import plain_schema, plain_text
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, ToolCall, ToolResult

SERVER = r"""
import json, os, sys
print("\x1b[2Jgone", file=sys.stderr, flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    if "id" not in asked: continue
    method, fault = asked["method"], None
    if method == "initialize":
        answer = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
    elif method == "tools/list":
        red = "\x1b[31mred\x1b]0;title\x07"
        schema = {"type": "object", "properties": {"x": {"description": red, "enum": ["\x1b"]}}}
        answer = {"tools": [{"name": "say", "description": red, "inputSchema": schema}]}
    else:
        kind = asked["params"]["arguments"]["kind"]
        if kind == "die": os._exit(1)
        if kind == "error":
            fault = {"code": -32000, "message": "\x1b[31mno"}
        text = {"escape": "\x1b[2J\x1b]0;title\x07 hi\r\n\tyou\x9b1m", "half": "a \ud800 b"}.get(kind, "")
        answer = {"content": [{"type": "text", "text": text}]}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **({"error": fault} if fault else {"result": answer})}))
    sys.stdout.flush()
"""


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("plain\n\ttext, ümlaut, 漢字, 🎉", "plain\n\ttext, ümlaut, 漢字, 🎉"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]8;;https://example.invalid\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]0;title\x07\x1bP1$q\x1b\\\x1bc\x1b(Bdone", "done"),
        ("\x1b]0;never ended", "0;never ended"),
        ("a\x00\x07\x08\r\x7f\x85\x9b31mb", "ab"),
        ("\x1b" * 3, ""),
    ],
)
def test_escape_sequences_and_control_characters_are_removed(said: str, read: str) -> None:
    assert plain_text(said) == read


def test_a_schema_keeps_its_constraints() -> None:
    schema: Json = {
        "properties": {"title": {"title": "\x1b[1mT", "const": "\x1b"}},
        "anyOf": [{"description": "\x07d"}],
    }
    plain = {"properties": {"title": {"title": "T", "const": "\x1b"}}, "anyOf": [{"description": "d"}]}
    assert plain_schema(schema) == plain


def test_results_and_reasons_hold_no_escapes_and_a_lone_surrogate_is_no_violation(bwrap: Sandbox) -> None:
    async def ask(session: ToolSession, kind: str) -> ToolResult:
        return await session.call_tool(ToolCall(id="c", name="say"), {"kind": kind}, timeout_s=60)

    async def main() -> None:
        server = ServerSpec(name="loud", argv=("python3", "-c", SERVER), wire="legacy")
        async with open_session(server, bwrap, initial_state=None, seed=0) as session:
            (tool,) = session.tools
            assert tool.description == "red"
            assert tool.input_schema["properties"]["x"] == {"description": "red", "enum": ["\x1b"]}
            assert (await ask(session, "escape")).content == " hi\n\tyou"
            assert (await ask(session, "half")).content == "a ? b"
            assert (await ask(session, "error")).content == "no"
            with pytest.raises(ServerDied, match=r"its last words: gone$"):
                await ask(session, "die")

    asyncio.run(main())
