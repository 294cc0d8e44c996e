"""The native runtime as in the sandbox: alone, isolated, with the real SDK as its client."""

from __future__ import annotations

import ast
import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from mcp import Client, MCPError, StdioServerParameters
from mcp.types import CallToolResult
from runtime_wire import RUNTIME, isolated_argv

from gymcp.mcp_servers.native.runtime import STATE_KEY, state_key

T = TypeVar("T")
MODES: list[Literal["auto", "legacy", "2026-07-28"]] = ["auto", "legacy", "2026-07-28"]


def talk(root: Path, mode: Any, steps: Callable[[Client], Awaitable[T]]) -> T:
    async def session() -> T:
        command, *args = isolated_argv(root)
        async with Client(StdioServerParameters(command=command, args=args), mode=mode, read_timeout_seconds=20) as c:
            return await steps(c)

    return asyncio.run(session())


def text_of(result: CallToolResult) -> str:
    return "".join(getattr(part, "text", "") for part in result.content)


@pytest.mark.parametrize("mode", MODES)
def test_the_sdk_lists_the_tools(tree: Path, mode: str) -> None:
    tools = talk(tree, mode, lambda client: client.list_tools()).tools
    put = tools[0]
    assert [tool.name for tool in tools][:4] == ["put", "get", "keys", "sizes"]
    assert (put.title, put.description) == ("Put a note", "Write a note.\n\nIt replaces what was there.")
    assert put.input_schema == {
        "type": "object",
        "properties": {
            "key": {"type": "string", "minLength": 1, "description": "What to find it by, later."},
            "text": {"type": "string", "description": "The note."},
        },
        "required": ["key", "text"],
        "additionalProperties": False,
    }
    assert put.annotations is not None
    assert put.annotations.model_dump(by_alias=True, exclude_none=True) == {
        "destructiveHint": True,
        "idempotentHint": True,
    }
    assert put.output_schema is None
    assert tools[2].output_schema == {
        "type": "object",
        "properties": {"result": {"type": "array", "items": {"type": "string"}}},
        "required": ["result"],
        "additionalProperties": False,
    }


CALLS: list[tuple[str, dict[str, Any], str, bool, Any]] = [
    ("put", {"key": "a", "text": "ünï 🎈 \u2028 漢"}, "", False, None),
    ("get", {"key": "a"}, "ünï 🎈 \u2028 漢", False, None),
    ("get", {"key": "a", "limit": 3}, "ünï", False, None),
    ("keys", {}, '["a"]', False, {"result": ["a"]}),
    ("sizes", {"unit": "bytes"}, '{"a": 18}', False, {"a": 18}),
    ("echo", {"value": {"n": [1, None, True]}}, '{"n": [1, null, true]}', False, {"result": {"n": [1, None, True]}}),
    ("echo", {"value": None}, "null", False, {"result": None}),
    ("get", {"key": "b"}, "no note 'b'; have ['a']", True, None),
    ("absent", {"key": "b"}, "Unknown tool: absent", True, None),
    (
        "get",
        {"key": "a", "limit": "3"},
        "Invalid arguments for tool 'get': $.limit: expected integer, got string \"3\"",
        True,
        None,
    ),
    ("get", {"limit": 3}, "Invalid arguments for tool 'get': $.key: required, but missing", True, None),
    (
        "get",
        {"key": "a", "max": 3},
        "Invalid arguments for tool 'get': $.max: unknown name, expected one of: key, limit",
        True,
        None,
    ),
    (
        "put",
        {"key": "", "text": ""},
        "Invalid arguments for tool 'put': $.key: expected at least 1 characters, got string \"\"",
        True,
        None,
    ),
    (
        "sizes",
        {"unit": "furlongs"},
        'Invalid arguments for tool \'sizes\': $.unit: expected one of ["characters", "bytes"], got string "furlongs"',
        True,
        None,
    ),
    ("put_and_fail", {"key": "k"}, "KeyError: 'k'", True, None),
    ("open_file", {"path": "/nonexistent/path"}, "FileNotFoundError: No such file or directory", True, None),
    ("leave", {}, "SystemExit: 3", True, None),
    (
        "lie",
        {},
        "Tool 'lie' returned something else than it declares: $.result: expected integer, got string \"not a number\"",
        True,
        None,
    ),
    ("noisy", {}, "stdin has ''", False, None),
]


@pytest.mark.parametrize("mode", MODES)
def test_calls_are_answered_alike_in_every_protocol(tree: Path, mode: str) -> None:
    async def steps(client: Client) -> list[tuple[str, bool | None, Any, Any]]:
        await client.list_tools()  # from here on the SDK checks structured content against the output schemas
        results = [await client.call_tool(name, arguments) for name, arguments, *_ in CALLS]
        return [(text_of(r), r.is_error, r.structured_content, (r.meta or {})[STATE_KEY]) for r in results]

    noted = {"a": "ünï 🎈 \u2028 漢"}
    half = {**noted, "k": "half done"}
    after = {"put": noted, "get": noted, "keys": noted, "sizes": noted, "echo": noted, "absent": noted}
    expected = [(text, is_error, extra, state_key(after.get(name, half))) for name, _, text, is_error, extra in CALLS]
    assert talk(tree, mode, steps) == expected


@pytest.mark.parametrize("mode", MODES)
def test_ten_megabytes_arrive(tree: Path, mode: str) -> None:
    text = "é" * 5_000_000
    result = talk(tree, mode, lambda client: client.call_tool("size", {"text": text}))
    assert result.structured_content == {"result": 5_000_000}


@pytest.mark.parametrize("mode", MODES)
def test_a_call_given_up_by_the_client_does_not_disturb_the_next(tree: Path, tmp_path: Path, mode: str) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    async def steps(client: Client) -> tuple[int, str]:
        with pytest.raises(MCPError) as gave_up:
            await client.call_tool("open_file", {"path": str(fifo)}, read_timeout_seconds=0.2)
        await asyncio.to_thread(fifo.write_text, "too late")
        return gave_up.value.code, text_of(await client.call_tool("keys"))

    assert talk(tree, mode, steps) == (-32001, "[]")


def test_auto_mode_finds_the_modern_protocol_and_the_instructions(tree: Path) -> None:
    async def steps(client: Client) -> tuple[Any, ...]:
        info = client.server_info
        return client.protocol_version, client.instructions, info and (info.name, info.version)

    assert talk(tree, "auto", steps) == ("2026-07-28", "Keep notes.", ("notes", "1.2"))
    assert talk(tree, "legacy", steps) == ("2025-11-25", "Keep notes.", ("notes", "1.2"))


def test_the_runtime_imports_only_the_standard_library_and_parses_as_python_3_9() -> None:
    module = ast.parse(RUNTIME.read_text(), feature_version=(3, 9))
    imported = {
        name.split(".")[0]
        for node in ast.walk(module)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported <= sys.stdlib_module_names | {"_sha2", "_sha256"}
    assert not imported & {"asyncio", "inspect", "dataclasses", "logging"}


def test_a_plain_server_starts_without_the_slow_modules(tree: Path) -> None:
    code = (
        f"from __future__ import annotations; import sys; sys.path.insert(0, {str(tree)!r})\n"
        "from gymcp.mcp_servers.native.runtime import class_server\n"
        "class Notes:\n"
        "    def get(self, key: str, limit: int = 10) -> str: 'Read a note.'\n"
        "server = class_server(Notes)\n"
        """server.handle(b'{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "get"}}')\n"""
        "slow = {'asyncio', 'inspect', 'dataclasses', 'logging', 'ast', 'socket', 'json', 're', 'typing', 'enum', "
        "'collections', 'functools', 'contextlib'}\n"
        "print(sorted(slow & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", "")
