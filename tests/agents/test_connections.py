"""The wire to an endpoint: what comes compressed, comes endless, or would go through a proxy."""

from __future__ import annotations

import asyncio
import gzip
import zlib

import httpx
import pytest
from chat_server import Reply, chat_server

from gymcp.agents.connections import Response, Unreadable, open_connections, proxy_of


def ask(reply: Reply, most_bytes: int = 1000) -> Response:
    async def run(url: str) -> Response:
        async with asyncio.timeout(30), open_connections(url, {}) as connections:
            return await connections.post(b"{}", most_bytes=most_bytes)

    with chat_server(lambda number, body: reply) as server:
        return asyncio.run(run(server.url))


@pytest.mark.parametrize(
    ("encoding", "body"), [("gzip", gzip.compress(b"hello")), ("deflate", zlib.compress(b"hello")), ("x", b"hello")]
)
def test_a_compressed_answer_is_read_where_it_can_be(encoding: str, body: bytes) -> None:
    reply = Reply(body=body, headers={"content-encoding": encoding})
    if encoding == "x":
        with pytest.raises(Unreadable, match="its encoding is 'x'"):
            ask(reply)
    else:
        assert ask(reply).body == b"hello"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_no_more_is_read_than_may_be(encoding: str) -> None:
    body = b"a" * 1001
    reply = Reply(body=gzip.compress(body) if encoding == "gzip" else body, headers={"content-encoding": encoding})
    with pytest.raises(Unreadable, match="longer than 1000 bytes"):
        ask(reply)


def test_a_loopback_is_asked_without_a_proxy_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # nobody there

    async def run(url: str) -> list[int]:
        async with asyncio.timeout(30), open_connections(url, {}) as connections:
            return [(await connections.post(b"{}", most_bytes=100)).status for _ in range(3)]

    with chat_server(lambda number, body: Reply(status=200 + number)) as server:
        assert asyncio.run(run(server.url)) == [200, 201, 202]


def test_the_environment_names_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "proxy.invalid:3128")
    monkeypatch.setenv("no_proxy", "inside.invalid")
    assert proxy_of(httpx.URL("https://api.invalid/v1")) == httpx.URL("http://proxy.invalid:3128")
    assert proxy_of(httpx.URL("https://inside.invalid/v1")) is None
    assert proxy_of(httpx.URL("https://127.0.0.1/v1")) is None
