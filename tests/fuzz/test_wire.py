"""Random and damaged messages on the wire, in both directions: each ends in an observation or a typed error."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.native import runtime
from gymcp.mcp_servers.native.runtime import Server
from gymcp.mcp_servers.sessions.connect import connect
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec, StateSource
from gymcp.mcp_servers.transports.direct_requests import FIRST_ID
from gymcp.mcp_servers.transports.http_remote import RemoteProcess
from gymcp.mcp_servers.transports.messages import decode_line, has_many_values
from gymcp.types import ToolCall, ToolResult

Wire = Literal["legacy", "2026-07-28"]
WIRES: tuple[Wire, ...] = ("legacy", "2026-07-28")
BOUND_S = 20.0
CALL_S = 5.0
_EMPTY = runtime.state_key({})
WORDS = (
    *("jsonrpc", "2.0", "id", "method", "params", "result", "error", "code", "message", "data", "content", "type"),
    *("text", "isError", "structuredContent", "_meta", "tools", "name", "inputSchema", "nextCursor", "cursor"),
    *("ping", "tools/call", "tools/list", "initialize", "notifications/cancelled", "notifications/progress"),
    *("requestId", "progressToken", "progress", "roots/list", "sampling/createMessage", "resultType", "inputRequests"),
    *(runtime.STATE_KEY, runtime.RESULT_STATE_KEY, runtime.TIMEOUT_KEY, runtime.VERSION_KEY, runtime.CAPABILITIES_KEY),
    *("gymcp/setup", "gymcp/state", "protocolVersion", "2026-07-28", "arguments", "number", "seed", "initialState"),
)
texts = st.sampled_from(WORDS) | st.text(st.characters(codec=None), max_size=8)
numbers = st.integers(-3, 8) | st.integers() | st.floats() | st.just(10**400)
plain = st.none() | st.booleans() | numbers | texts
values = st.recursive(
    plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=5), max_leaves=12
)
ids = st.integers(-1, 6) | st.integers(FIRST_ID, FIRST_ID + 4) | texts | st.none() | st.floats()
blocks = st.fixed_dictionaries({"type": st.sampled_from(["text", "image", "x"]), "text": texts | numbers})
results = values | st.fixed_dictionaries({"content": st.lists(blocks, max_size=5) | values, "isError": values})
methods = st.sampled_from([word for word in WORDS if "/" in word] + ["ping", "initialize"]) | texts
messages = st.fixed_dictionaries(
    {"jsonrpc": st.just("2.0") | values},
    optional={"id": ids, "method": methods, "params": values, "result": results, "error": values},
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    """One line, whole or damaged, or anything."""
    line = json.dumps(draw(messages | values)).encode()
    match draw(st.integers(0, 5)):
        case 0:
            at = draw(st.integers(0, len(line)))
            line = line[:at] + draw(st.binary(max_size=3)) + line[at + draw(st.integers(0, 3)) :]
        case 1:
            line = draw(st.binary(max_size=30))
        case 2:
            line = b"[" * draw(st.integers(0, 300)) + line
    return line + draw(st.sampled_from([b"\n", b"\n", b"\n", b"\r\n", b"", b"\n\n"]))


# ----------------------------------------------------------------------------------------- from a server to the session


class Scripted(RemoteProcess):
    """A server in this process, over a socket: it lists one tool, and says what it is told when that is called."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @property
    def stdin(self) -> asyncio.StreamWriter:
        return self._writer

    @property
    def stdout(self) -> asyncio.StreamReader:
        return self._reader


async def _serve(sock: socket.socket, said: Sequence[bytes]) -> None:
    reader, writer = await asyncio.open_connection(sock=sock)
    with contextlib.suppress(ConnectionError):
        while line := await reader.readline():
            asked = json.loads(line)
            if "id" not in asked or "method" not in asked:
                continue
            answers: dict[str, dict[str, Any]] = {
                "initialize": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "scripted", "version": "1"},
                },
                "gymcp/setup": {"stateKey": _EMPTY},
                "tools/list": {"tools": [{"name": "act", "inputSchema": {"type": "object"}}]},
            }
            if asked["method"] not in answers:
                for part in said:
                    writer.write(part)
                answers["tools/call"] = {"content": [], "_meta": {runtime.STATE_KEY: _EMPTY}}
                answers["gymcp/state"] = {"stateKey": _EMPTY, "state": {}}
                answers.setdefault(asked["method"], {})
            result = answers[asked["method"]]
            if runtime.VERSION_KEY in ((asked.get("params") or {}).get("_meta") or {}):
                result |= {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
            answer = {"jsonrpc": "2.0", "id": asked["id"], "result": result}
            writer.write(json.dumps(answer).encode() + b"\n")
            await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def open_scripted(said: Sequence[bytes], state: StateSource, wire: Wire) -> AsyncIterator[ToolSession]:
    ours, theirs = socket.socketpair()
    serving = asyncio.create_task(_serve(theirs, said))
    reader, writer = await asyncio.open_connection(sock=ours)
    spec = ServerSpec(name="scripted", argv=("none",), wire=wire, state=state)
    try:
        async with connect(spec, Scripted(reader, writer), lambda session: session.start(None, 0)) as session:
            yield session
    finally:
        writer.close()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


async def _call_tools(said: Sequence[bytes], state: StateSource, wire: Wire) -> list[ToolResult | EnvInfraError]:
    """Results or errors of two calls."""
    found: list[ToolResult | EnvInfraError] = []
    with contextlib.suppress(EnvInfraError):
        async with asyncio.timeout(BOUND_S), open_scripted(said, state, wire) as session:
            for number in range(2):
                try:
                    found.append(await session.call_tool(ToolCall(id=str(number), name="act"), {}, timeout_s=CALL_S))
                except EnvInfraError as error:
                    found.append(error)
            if session.has_observable_state:
                await session.state()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    return found


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("state", ["opaque", "declared"])
def test_an_honest_server_is_understood(state: StateSource, wire: Wire) -> None:
    """Control: a server whose answers are refused would end each example in the same error."""
    ended = asyncio.run(_call_tools([], state, wire))
    assert [isinstance(each, ToolResult) and not each.is_error for each in ended] == [True, True]


FIRST_ANSWER = b'{"jsonrpc":"2.0","id":3,"result":'
FIRST_DIRECT_ANSWER = b'{"jsonrpc":"2.0","id":%d,"result":' % (FIRST_ID + 1)
"""Begin an answer to the first call, past the SDK's client, where the setup had the first id."""


@given(st.lists(lines(), max_size=4), st.sampled_from(["opaque", "declared"]), st.sampled_from(WIRES))
@example([b'{"jsonrpc":"2.0","id":"p","method":"ping"}\n'], "opaque", "legacy")
@example(
    [b'{"jsonrpc":"2.0","id":4,"result":{"content":[],"_meta":{"gymcp/stateKey":"","gymcp/state":NaN}}}\n'],
    "declared",
    "legacy",
)
@example([FIRST_ANSWER + b'{"content":[{"type":"text","text":"\\ud800\\u001b[2J"}]}}\n'], "opaque", "legacy")
@example([FIRST_ANSWER + b'{"content":{},"_meta":7}}\n'], "opaque", "legacy")
@example([b'{"jsonrpc":"2.0","id":3,"error":{"code":-32001,"message":""}}\n'], "opaque", "legacy")
@example([FIRST_ANSWER + b"[" * 300 + b"\n"], "opaque", "legacy")
@example([b'{"jsonrpc":"2.0","id":"p","method":"ping"}\n'], "declared", "2026-07-28")
@example([FIRST_DIRECT_ANSWER + b'{"content":[],"_meta":{"gymcp/stateKey":"","gymcp/state":NaN}}}\n'], "declared",
         "2026-07-28")  # fmt: skip
@example([FIRST_DIRECT_ANSWER + b'{"content":[{"type":"text","text":"\\ud800\\u001b[2J"}]}}\n'], "declared",
         "2026-07-28")  # fmt: skip
@example([FIRST_DIRECT_ANSWER + b'{"content":{},"_meta":7}}\n'], "declared", "2026-07-28")
@example([FIRST_DIRECT_ANSWER + b"[1]}\n"], "declared", "2026-07-28")
@example([FIRST_DIRECT_ANSWER + b"[" * 300 + b"\n"], "declared", "2026-07-28")
def test_lines_of_a_server_end_in_a_result_or_a_typed_error(said: list[bytes], state: StateSource, wire: Wire) -> None:
    ended = asyncio.run(_call_tools(said, state, wire))
    assert len(ended) == 2
    for each in ended:
        text = each.content if isinstance(each, ToolResult) else str(each)
        assert not any((char < " " and char not in "\n\t") or "\x7f" <= char <= "\x9f" for char in text)


@given(values)
def test_values_are_counted_without_parsing(value: Any) -> None:
    line = json.dumps(value).encode()
    marks = _marks(json.loads(line))
    assert has_many_values(line, most=marks) is False
    assert has_many_values(line, most=marks - 1) is (len(line) > marks - 1)


def _marks(value: Any) -> int:
    """Marks of JSON outside strings that its text has."""
    if isinstance(value, dict):
        return 2 * len(value) + max(0, len(value) - 1) - len(value) + 1 + sum(map(_marks, value.values()))
    if isinstance(value, list):
        return 1 + max(0, len(value) - 1) + sum(map(_marks, value))
    return 0


@given(lines())
def test_every_readable_message_can_be_written(line: bytes) -> None:
    """No half of a character is left."""
    with contextlib.suppress(ValueError):
        json.dumps(decode_line(line), ensure_ascii=False).encode()


# ---------------------------------------------------------------------------------------- from a client to the runtime


def _server() -> Server:
    server = Server("counter")
    total = [0]

    @server.setup
    def setup(initial_state: Any, seed: int) -> None:
        total[0] = seed

    @server.state
    def state() -> Any:
        return {"total": total[0]}

    @server.tool()
    def add(number: int, note: str = "") -> int:
        """Add a number."""
        total[0] += number
        return total[0]

    return server


@given(st.lists(lines(), max_size=6))
@example([b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"add","arguments":{"number":1e999}}}\n'])
@example([b'{"jsonrpc":"2.0","id":1,"method":"gymcp/setup","params":{"seed":1}}\n'] * 2)
def test_lines_of_a_client_get_a_valid_answer_or_none(said: list[bytes]) -> None:
    server = _server()
    for line in said:
        answer = server.handle(line)
        if answer is None:
            continue
        assert answer.endswith(b"\n")
        assert answer.count(b"\n") == 1
        found = json.loads(answer)
        assert found["jsonrpc"] == "2.0"
        assert ("result" in found) is not ("error" in found)
        if "error" in found:
            assert isinstance(found["error"]["code"], int)
            assert isinstance(found["error"]["message"], str)
    ping = server.handle(b'{"jsonrpc":"2.0","id":9,"method":"ping"}\n')
    assert ping is not None
    assert json.loads(ping)["result"] == {}
