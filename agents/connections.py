"""Hundreds of requests to one server at a time, each on a connection of its own.

One httpx client with hundreds of connections looks through all of them at the start and at the end of every request,
which costs more than the request. So each connection has a client of its own here, and the last one used is the next
one used, so that few are kept.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

import httpx

ONE = httpx.Limits(max_connections=1, max_keepalive_connections=1)


class Connections:
    """Made by `open_connections`."""

    def __init__(
        self, url: str, headers: Mapping[str, str], timeout: httpx.Timeout, closing: contextlib.AsyncExitStack
    ) -> None:
        self._url = url
        self._headers = dict(headers)
        self._timeout = timeout
        self._closing = closing
        self._idle: list[httpx.AsyncClient] = []
        self._tls = httpx.create_ssl_context()  # takes tens of milliseconds: once for all

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[httpx.AsyncClient]:
        """For one request at a time, and nobody else's meanwhile."""
        client = self._idle.pop() if self._idle else await self._closing.enter_async_context(self._new())
        try:
            yield client
        finally:
            self._idle.append(client)

    def _new(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._url, headers=self._headers, timeout=self._timeout, limits=ONE, verify=self._tls
        )


@contextlib.asynccontextmanager
async def open_connections(url: str, headers: Mapping[str, str], timeout: httpx.Timeout) -> AsyncIterator[Connections]:
    """To the server at `url`; all are closed on the way out."""
    async with contextlib.AsyncExitStack() as closing:
        yield Connections(url, headers, timeout, closing)
