"""Requests past the SDK's client: the server sees the same lines, and the caller the same answers and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import mcp
import mcp_types
import pytest
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ValidationError

from gymcp.errors import ProtocolError
from gymcp.mcp_servers.sandbox import Launch, get_sandbox
from gymcp.mcp_servers.sessions.connection import ServerConnection
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.direct_requests import FIRST_ID, DirectRequests
from gymcp.mcp_servers.transports.stdio import pipe_transport
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.types import Json

SERVER = r"""
import json, sys
lines = []
for text in sys.stdin:
    lines.append(text.rstrip("\n"))
    asked = json.loads(text)
    if "id" not in asked:
        continue
    name = asked["params"].get("name")
    answer = {"jsonrpc": "2.0", "id": asked["id"]}
    if name == "die":
        sys.exit(3)
    if name == "wait":
        continue
    if name == "error":
        answer["error"] = {"code": -32001, "message": "not today", "data": {"why": [1]}}
    elif name == "bad_error":
        answer["error"] = {"message": "no code"}
    elif name == "bad_result":
        answer["result"] = {"content": 3, "resultType": "complete"}
    elif name == "no_result":
        answer["result"] = [1]
    else:
        answer["result"] = {"content": [{"type": "text", "text": json.dumps(lines)}], "resultType": "complete"}
    if name == "text_id":
        answer["id"] = str(asked["id"])
    if name == "others":
        for other in (asked["id"] + 7, "x", asked["id"]):
            print(json.dumps({**answer, "id": other}), flush=True)
    if name == "huge":
        answer["result"] = {"content": [{"type": "image"}] * 251}
    print(json.dumps(answer), flush=True)
"""
SPEC = ServerSpec(name="echo", argv=(sys.executable, "-c", SERVER), wire="2026-07-28")
WAIT_S = 60.0


class Both:
    """Two connections over the pipes of one server: past the client, and through it."""

    def __init__(self, client: mcp.Client, process: Any, violation: ProtocolViolation, direct: DirectRequests) -> None:
        self.violation = violation
        self.past, self.through = (
            ServerConnection(
                SPEC, client, process, violation, redaction=None, error_rule=lambda stage, code: None, direct=each
            )
            for each in (direct, None)
        )


@contextlib.asynccontextmanager
async def both() -> AsyncIterator[Both]:
    violation, direct = ProtocolViolation(), DirectRequests()
    async with contextlib.AsyncExitStack() as stack:
        process = await stack.enter_async_context(get_sandbox("none").start(Launch(argv=SPEC.argv)))
        transport = pipe_transport(process, violation, line_bytes=100_000, direct=direct)
        client = await stack.enter_async_context(mcp.Client(transport, mode=SPEC.wire, cache=None))
        yield Both(client, process, violation, direct)


def run(body: Callable[[Both], Awaitable[None]]) -> None:
    async def main() -> None:
        async with asyncio.timeout(WAIT_S), both() as pair:
            await body(pair)

    asyncio.run(main())


async def call(server: ServerConnection, name: str, **arguments: Json) -> mcp_types.CallToolResult:
    params = {"name": name, "arguments": arguments, "_meta": {"gymcp/x": 1.5}}
    return await server.request("tools/call", params, mcp_types.CallToolResult)


def lines_in(result: mcp_types.CallToolResult) -> list[dict[str, Any]]:
    (block,) = result.content
    assert isinstance(block, mcp_types.TextContent)
    return [json.loads(line) for line in json.loads(block.text)]


def test_the_server_sees_the_same_lines_but_for_their_numbers() -> None:
    async def body(pair: Both) -> None:
        arguments = {"text": "Zoë\u2028€", "none": None, "deep": [{"a": [1.5, True]}], "big": 2**70}
        await call(pair.through, "echo", **arguments)
        lines = lines_in(await call(pair.past, "echo", **arguments))
        through, past = lines[-2:]
        assert past.pop("id") == FIRST_ID
        assert through.pop("id") < FIRST_ID
        assert list(past) == list(through)
        assert past == through

    run(body)


class StateResult(BaseModel):
    content: list[dict[str, Any]]


def test_requests_of_the_runtime_go_the_same_two_ways() -> None:
    async def body(pair: Both) -> None:
        for server in (pair.through, pair.past):
            answer = await server.request("gymcp/state", {}, StateResult)
        through, past = (json.loads(line) for line in json.loads(answer.content[0]["text"])[-2:])
        assert {**past, "id": 0} == {**through, "id": 0}

    run(body)


@pytest.mark.parametrize("name", ["error", "bad_result", "huge", "die"])
def test_errors_are_the_same(name: str) -> None:
    async def fail(server: ServerConnection) -> tuple[type[BaseException], str, object]:
        with pytest.raises((MCPError, ValidationError)) as caught:
            await call(server, name)
        error = caught.value
        return type(error), str(error), (error.code, error.data) if isinstance(error, MCPError) else None

    async def collect(ways: list[object], way: str) -> None:
        async with both() as pair:
            ways.append(await fail(getattr(pair, way)))

    async def main() -> None:
        ways: list[object] = []
        async with asyncio.timeout(WAIT_S):
            for way in ("past", "through"):
                await collect(ways, way)
        assert ways[0] == ways[1]

    asyncio.run(main())


@pytest.mark.parametrize("name", ["text_id", "others"])
def test_an_answer_is_found_by_its_number_alone(name: str) -> None:
    async def body(pair: Both) -> None:
        for _ in range(3):
            assert lines_in(await call(pair.past, name))[-1]["params"]["name"] == name
            assert lines_in(await call(pair.through, "echo"))

    run(body)


@pytest.mark.parametrize("name", ["bad_error", "no_result"])
def test_a_malformed_answer_ends_the_connection(name: str) -> None:
    async def body(pair: Both) -> None:
        with pytest.raises(ProtocolError, match="is not a JSON-RPC message"):
            async with pair.past.boundary("call", WAIT_S):
                await call(pair.past, name)
        with pytest.raises(MCPError, match="Connection closed"):
            await call(pair.past, "echo")

    run(body)


def test_a_cancelled_request_is_taken_back_and_its_late_answer_dropped() -> None:
    async def body(pair: Both) -> None:
        numbers = []
        for server in (pair.past, pair.through):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await call(server, "wait")
            *_, asked, taken_back, _last = lines_in(await call(server, "echo"))
            assert asked["params"]["name"] == "wait"
            numbers.append(asked["id"])
            assert taken_back == {
                "jsonrpc": "2.0",
                "method": "notifications/cancelled",
                "params": {"requestId": asked["id"], "reason": "caller cancelled"},
            }
        assert numbers[0] == FIRST_ID > numbers[1]

    run(body)


def test_requests_side_by_side_get_their_own_answers() -> None:
    async def body(pair: Both) -> None:
        calls = [call(pair.past if n % 2 else pair.through, "echo", number=n) for n in range(20)]
        results = [lines_in(result) for result in await asyncio.gather(*calls)]
        last = [lines[-1]["params"]["arguments"]["number"] for lines in results]
        assert last == list(range(20))

    run(body)
