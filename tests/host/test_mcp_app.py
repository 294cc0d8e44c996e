"""The MCP endpoint of an episode, as the MCP SDK's own clients find it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
import httpx2
import pytest
from hosting import TOKEN, Hosted, bearer
from mcp import Client, ClientSession, MCPError
from mcp.client.streamable_http import streamable_http_client

from gymcp.agents.endpoint import http_server

PAY = {"source": "ann", "target": "bob", "amount": 5}


@asynccontextmanager
async def connect(
    episode: Mapping[str, Any], token: str | None = None, **settings: Any
) -> AsyncIterator[ClientSession]:
    """A session, before its handshake."""
    headers = episode["mcp"]["headers"] if token is None else bearer(token)
    async with (
        httpx2.AsyncClient(headers=headers, timeout=60) as http,
        streamable_http_client(episode["mcp"]["url"], http_client=http) as (reading, writing, *_),
        ClientSession(reading, writing, **settings) as session,
    ):
        yield session


def run(work: Callable[[], Awaitable[None]]) -> None:
    async def main() -> None:
        await asyncio.wait_for(work(), 60)

    asyncio.run(main())


def test_a_session_calls_the_tools_of_its_episode(hosted: Hosted) -> None:
    episode = hosted.start("bank", "pay_back_5")

    async def work() -> None:
        async with connect(episode) as session:
            await session.initialize()
            assert [tool.name for tool in (await session.list_tools()).tools] == ["balance", "transfer"]
            result = await session.call_tool("transfer", PAY)
            assert (result.is_error, result.content[0].text) == (False, "done")  # type: ignore[union-attr]

    run(work)
    assert hosted.ask(episode, "finish")["score"] == 1.0


def test_a_session_is_told_when_a_search_has_found_more_tools(hosted: Hosted) -> None:
    episode = hosted.start("bank", "pay_back_5", wrappers={"retrieve": 0})
    told: list[str] = []

    async def note(message: Any) -> None:
        told.append(message.method)

    async def work() -> None:
        async with connect(episode, message_handler=note) as session:
            await session.initialize()
            assert [tool.name for tool in (await session.list_tools()).tools] == ["search_tools"]
            await session.call_tool("search_tools", {"query": "transfer money"})
            assert told == ["notifications/tools/list_changed"]
            assert "transfer" in [tool.name for tool in (await session.list_tools()).tools]
            assert not (await session.call_tool("transfer", PAY)).is_error

    run(work)
    assert (hosted.ask(episode, "finish")["score"], len(told)) == (1.0, 1)


def test_requests_that_hold_too_much_are_refused(hosted: Hosted, monkeypatch: pytest.MonkeyPatch) -> None:
    episode = hosted.start("bank", "pay_back_5")
    path, body = f"/v1/episodes/{episode['id']}/call", {"name": "balance", "arguments": {"owner": "a" * 2_000}}
    monkeypatch.setattr(http_server, "MAX_HELD_BYTES", 1_000)
    answers = [hosted.post(each, body, episode["token"]) for each in (path, "/mcp")]
    assert [(each.status_code, "more than 1000 bytes" in each.text) for each in answers] == [(429, True)] * 2
    monkeypatch.undo()
    assert hosted.post(path, body, episode["token"]).status_code == 200
    hosted.ask(episode, "finish")


def test_a_second_agent_on_one_token_is_refused_until_the_first_session_has_ended(hosted: Hosted) -> None:
    episode = hosted.start("bank", "pay_back_5")

    def call() -> httpx.Response:
        path, body = f"/v1/episodes/{episode['id']}/call", {"name": "balance", "arguments": {"owner": "ann"}}
        return hosted.post(path, body, episode["token"])

    async def work() -> None:
        async with connect(episode) as first:
            await first.initialize()
            async with connect(episode) as second:
                with pytest.raises(MCPError, match="has an MCP session already, and a token is for one agent"):
                    await second.initialize()
            refused = await asyncio.to_thread(call)
            assert (refused.status_code, "has an MCP session" in refused.text) == (409, True)
            assert not (await first.call_tool("balance", {"owner": "ann"})).is_error
        async with connect(episode) as third:
            await third.initialize()
            assert not (await third.call_tool("balance", {"owner": "ann"})).is_error
        assert (await asyncio.to_thread(call)).status_code == 200

    run(work)
    assert hosted.ask(episode, "finish")["metrics"]["tool_calls"] == 3


def test_a_client_of_the_newest_protocol_falls_back_to_a_session(hosted: Hosted) -> None:
    episode = hosted.start("bank", "pay_back_5")

    async def work() -> None:
        async with httpx2.AsyncClient(headers=episode["mcp"]["headers"], timeout=60) as http:
            transport = streamable_http_client(episode["mcp"]["url"], http_client=http)
            async with Client(transport) as client:
                assert not (await client.call_tool("transfer", PAY)).is_error

    run(work)
    assert hosted.ask(episode, "finish")["score"] == 1.0


@pytest.mark.parametrize(("which", "words"), [("forged", "neither this host's nor"), ("expired", "has expired")])
def test_a_token_that_is_forged_or_expired_is_refused(hosted: Hosted, which: str, words: str) -> None:
    episode = hosted.start("bank", "pay_back_5")
    token = f"{episode['id']}.{'x' * 32}"
    if which == "expired":
        token = episode["token"]
        hosted.ask(episode, "finish")

    async def work() -> None:
        async with connect(episode, token) as session:
            with pytest.raises(MCPError, match=words):
                await session.initialize()

    run(work)
    if which == "forged":
        assert hosted.ask(episode, "finish")["outcome"] == "scored"


@pytest.mark.parametrize(
    ("method", "headers", "body", "status", "words"),
    [
        ("POST", {}, {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, 400, "no MCP session: begin with initialize"),
        ("POST", {}, "[", 400, "the body is not JSON"),
        ("POST", {"mcp-session-id": "x"}, {}, 404, "no such MCP session"),
        ("GET", {}, None, 404, "no such MCP session"),
        ("POST", {"mcp-protocol-version": "2099-01-01"}, {}, 400, "has no sessions"),
    ],
)
def test_an_invalid_session_is_one_error(
    hosted: Hosted, method: str, headers: dict[str, str], body: Any, status: int, words: str
) -> None:
    episode = hosted.start("bank", "pay_back_5")
    content = {"content": body} if isinstance(body, str) else {"json": body}
    answer = hosted.client.request(method, "/mcp", headers={**episode["mcp"]["headers"], **headers}, **content)
    assert (answer.status_code, words in answer.json()["error"]["message"]) == (status, True), answer.text
    hosted.ask(episode, "finish")


@pytest.mark.parametrize("path", ["/mcp", "/v1/episodes"])
def test_a_body_of_100_mb_is_refused_without_being_read(hosted: Hosted, path: str) -> None:
    episode = hosted.start("bank", "pay_back_5")
    token = episode["token"] if path == "/mcp" else TOKEN
    host, _, port = hosted.address.removeprefix("http://").partition(":")
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nContent-Length: 100000000\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode())
        answer = connection.makefile("rb").read().decode()  # until the host has closed the connection
    assert answer.startswith("HTTP/1.1 413 ")
    assert "the request has more than 16000000 bytes" in answer
    hosted.ask(episode, "finish")
