"""Streams of the MCP SDK with a tap: a function that sees every message, and may change it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
from mcp.shared.message import SessionMessage

from gymcp.mcp_servers.loop_share import LoopShare, charge_turns
from gymcp.mcp_servers.redaction import Redaction
from gymcp.mcp_servers.transports.stdio import Received

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type


@dataclass(frozen=True, slots=True)
class TappedStream:
    """A stream to read from or to write to. `tap` sees every message first and may change it."""

    inner: Any
    tap: Callable[[SessionMessage], Awaitable[None]]

    async def send(self, item: SessionMessage, /) -> None:
        await self.tap(item)
        await self.inner.send(item)

    async def receive(self) -> Received:
        item: Received = await self.inner.receive()
        if isinstance(item, SessionMessage):
            await self.tap(item)
        return item

    def __aiter__(self) -> TappedStream:
        return self

    async def __anext__(self) -> Received:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def aclose(self) -> None:
        await self.inner.aclose()

    async def __aenter__(self) -> TappedStream:
        await self.inner.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.inner.__aexit__(exc_type, exc_val, exc_tb)


@contextlib.asynccontextmanager
async def redact_transport(
    transport: AbstractAsyncContextManager[TransportStreams], redaction: Redaction | None, share: LoopShare
) -> AsyncIterator[TransportStreams]:
    """The transport, with secret values removed from the server's messages. The server's share pays for the time."""

    async def redact(item: SessionMessage) -> None:
        assert redaction is not None
        item.message = await charge_turns(share, redaction.message(item.message))

    async with transport as (read, write):
        yield (read if redaction is None else TappedStream(read, redact)), write
