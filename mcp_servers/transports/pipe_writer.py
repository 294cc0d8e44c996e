"""The way to a server: messages on its standard input, and the count of what it may send before it answers them."""

from __future__ import annotations

import asyncio
import json
from types import TracebackType

import anyio
import mcp_types
from mcp.shared.message import ClientMessageMetadata, SessionMessage

from gymcp.mcp_servers.loop_share import LoopShare
from gymcp.mcp_servers.transports.messages import TooMuch

MAX_MESSAGES = 100_000
"""Messages before the answer to one request."""
MAX_SERVER_REQUESTS = 100
"""Requests of a server before its answer to one of ours. Its pings count as messages."""
MAX_ID_CHARS = 256
"""Characters of the id of a server's own request, which is sent back."""


class PipeWriter:
    """Writes messages straight to the server's standard input (the SDK's WriteStream).

    `headers`: write each message together with its HTTP headers, for a bridge that posts it.
    """

    def __init__(self, stdin: asyncio.StreamWriter, intake: IntakeCounter, *, headers: bool = False) -> None:
        self._stdin = stdin
        self._intake = intake
        self._headers = headers

    async def send(self, item: SessionMessage, /) -> None:
        try:
            self.write(item)
            await self._stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise anyio.BrokenResourceError from error

    def write(self, item: SessionMessage) -> None:
        """Write the message without waiting. Raises ConnectionError, RuntimeError."""
        if isinstance(item.message, mcp_types.JSONRPCRequest):
            self._intake.start_request()
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        if self._headers:
            headers = item.metadata.headers if isinstance(item.metadata, ClientMessageMetadata) else None
            line = f'{{"headers": {json.dumps(headers or {})}, "message": {line}}}'
        self._stdin.write(line.encode() + b"\n")

    async def aclose(self) -> None:
        self._stdin.close()

    async def __aenter__(self) -> PipeWriter:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class IntakeCounter:
    """Count of the messages that a server has sent since the last request to it."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._messages = 0
        self._requests = 0

    def start_request(self) -> None:
        """Start to count anew, because another request is sent."""
        self._messages = self._requests = 0
        self._share.grant()

    def count_message(self) -> None:
        """Count a message. Raises TooMuch."""
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise TooMuch(f"it sends more than {MAX_MESSAGES} messages before it answers")

    def count_request(self, number: object) -> None:
        """Count a request of the server. Raises TooMuch."""
        self._requests += 1
        if self._requests > MAX_SERVER_REQUESTS:
            raise TooMuch(f"it sends more than {MAX_SERVER_REQUESTS} requests before it answers")
        if isinstance(number, str) and len(number) > MAX_ID_CHARS:
            raise TooMuch(f"the id of its request has more than {MAX_ID_CHARS} characters")
