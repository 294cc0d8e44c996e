"""Tools that change within an episode, as MCP clients of the gateway see it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from gymcp.agents.endpoint.tool_exchange import Event, WaitingCall
from gymcp.agents.programs.exchange import Exchange
from gymcp.agents.programs.gateway import open_gateway
from gymcp.agents.programs.settings import ProgramSettings
from gymcp.types import Message, Observation, Tool

PAY, REPAY = Tool(name="pay"), Tool(name="repay")


@asynccontextmanager
async def serve(folder: Path, *offers: tuple[Tool, ...]) -> AsyncIterator[tuple[str, dict[str, str]]]:
    """URL and headers of an episode that offers the first tools, and others after each call."""
    exchange = Exchange(None, ProgramSettings(argv=("true",)), seed=1)
    exchange.observe(Observation(messages=(), tools=offers[0]))

    async def answer() -> None:
        for offer in offers[1:]:
            event = await exchange.events.get()
            assert isinstance(event, WaitingCall)
            done = Message(role="tool", content="done", tool_call_id=event.call.id)
            exchange.observe(Observation(messages=(done,), tools=offer))

    async with open_gateway(folder, "none") as gateway:
        with gateway.admit(exchange):
            answering = asyncio.create_task(answer())
            yield f"http://127.0.0.1:{gateway.port}/mcp", {"Authorization": f"Bearer {exchange.token}"}
            await answering


def test_a_client_is_told_once_that_the_tools_have_changed(tmp_path: Path) -> None:
    told: list[str] = []

    async def note(message: Any) -> None:
        told.append(message.method)

    async def main() -> None:
        async with (
            serve(tmp_path, (PAY,), (PAY,), (REPAY,), (REPAY,)) as (url, headers),
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
            streamable_http_client(url, http_client=http) as (reading, writing, *_),
            ClientSession(reading, writing, message_handler=note) as session,
        ):
            opened = await session.initialize()
            assert opened.capabilities.tools is not None
            assert opened.capabilities.tools.list_changed
            found = [tool.name for tool in (await session.list_tools()).tools]
            for _ in range(3):
                assert (await session.call_tool("pay", {})).content[0].text == "done"  # type: ignore[union-attr]
                found.append(f"told {len(told)}")
            found += [tool.name for tool in (await session.list_tools()).tools]
            assert found == ["pay", "told 0", "told 1", "told 1", "repay"]

    asyncio.run(asyncio.wait_for(main(), 60))
    assert told == ["notifications/tools/list_changed"]


@pytest.mark.parametrize("accept", ["application/json, text/event-stream", "application/json,text/event-stream"])
def test_a_client_that_leaves_before_its_answer_is_told_with_the_next_one(accept: str, tmp_path: Path) -> None:
    """Without the space, the SDK answers."""
    exchange = Exchange(None, ProgramSettings(argv=("true",)), seed=1)
    exchange.observe(Observation(messages=(), tools=(PAY,)))
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "pay"}}
    headers = {
        "Accept": accept, "MCP-Protocol-Version": "2025-06-18", "Content-Type": "application/json",
        "Authorization": f"Bearer {exchange.token}",
    }  # fmt: skip

    def answer(event: Event) -> None:
        assert isinstance(event, WaitingCall)
        done = Message(role="tool", content="done", tool_call_id=event.call.id)
        exchange.observe(Observation(messages=(done,), tools=(REPAY,)))

    async def main() -> None:
        async with open_gateway(tmp_path, "none") as gateway, httpx2.AsyncClient(headers=headers, timeout=60) as http:
            with gateway.admit(exchange):
                url = f"http://127.0.0.1:{gateway.port}/mcp"
                await http.post(url, json={"jsonrpc": "2.0", "id": 0, "method": "tools/list", "params": {}})
                _, leaving = await asyncio.open_connection("127.0.0.1", gateway.port)
                body = json.dumps(call)
                lines = [f"{name}: {value}" for name, value in headers.items()]
                head = "\r\n".join(["POST /mcp HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", *lines])
                leaving.write(f"{head}\r\n\r\n{body}".encode())
                unheard = await exchange.events.get()
                leaving.close()
                await leaving.wait_closed()
                for _ in range(2):  # by then the server has seen that the client has left
                    await http.get(f"{url}/nothing")
                answer(unheard)
                again = asyncio.create_task(http.post(url, json=call))
                answer(await exchange.events.get())
                assert "notifications/tools/list_changed" in (await again).text

    asyncio.run(asyncio.wait_for(main(), 60))


def test_the_stream_that_a_client_opens_for_messages_begins_at_once(tmp_path: Path) -> None:
    """As the SDK in TypeScript opens it, although nothing is sent on it."""

    async def main() -> None:
        async with serve(tmp_path, (PAY,)) as (url, headers), httpx2.AsyncClient(headers=headers, timeout=60) as http:
            wants = {"Accept": "text/event-stream", "MCP-Protocol-Version": "2025-06-18"}
            async with http.stream("GET", url, headers=wants) as answer:
                assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, "text/event-stream")

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_client_without_a_handshake_gets_plain_answers(tmp_path: Path) -> None:
    async def main() -> None:
        async with (
            serve(tmp_path, (PAY,), (REPAY,)) as (url, headers),
            httpx2.AsyncClient(headers=headers, timeout=60) as http,
        ):
            accept = {"Accept": "application/json, text/event-stream"}
            for method, params in (("tools/list", {}), ("tools/call", {"name": "pay"}), ("tools/list", {})):
                body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
                answer = await http.post(url, json=body, headers=accept)
                assert "result" in answer.json()
            assert [tool["name"] for tool in answer.json()["result"]["tools"]] == ["repay"]

    asyncio.run(asyncio.wait_for(main(), 60))
