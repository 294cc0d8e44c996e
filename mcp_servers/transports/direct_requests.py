"""Requests to a server that go past the SDK's client, over the same pipes: same messages, limits and errors, less work.

For each request the SDK's client makes and checks models of the envelope, opens a span and a stream, and starts a turn
of its own loop. Here a request is a number and a future. Both share the pipes: the SDK's client numbers its requests
from 1, and what is no answer to a request of this module goes to that client.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

import anyio
import mcp_types
from mcp.shared.dispatcher import coerce_request_id
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

from gymcp.mcp_servers.transports.messages import to_message
from gymcp.mcp_servers.transports.pipe_writer import PipeWriter
from gymcp.types import Json

FIRST_ID = 1_000_000_000
"""Id of the first request: the SDK's client does not count so far, and 32 bits hold it."""
_PLAIN_ANSWER = frozenset({"jsonrpc", "id", "result"})


class DirectRequests:
    """The requests under way. It can be used once `open` has been called; `pipe_transport` does so."""

    def __init__(self) -> None:
        self._ids = itertools.count(FIRST_ID)
        self._pending: dict[object, asyncio.Future[dict[str, Any]]] = {}
        self._writer: PipeWriter | None = None

    def open(self, writer: PipeWriter) -> None:
        """Send over this writer from now on."""
        self._writer = writer

    def close(self) -> None:
        """End all requests, because no more answers are read."""
        self._writer = None
        for future in self._pending.values():
            if not future.done():
                future.set_exception(_make_closed_error())

    async def send(self, method: str, params: Mapping[str, Json]) -> dict[str, Any]:
        """The result. A request that is cancelled is taken back at the server, as the SDK's client does.

        Raises MCPError for an error of the server, and if the connection closes.
        """
        writer = self._writer
        if writer is None:
            raise _make_closed_error()
        number = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[number] = future
        request = mcp_types.JSONRPCRequest.model_construct(jsonrpc="2.0", id=number, method=method, params=dict(params))
        try:
            await writer.send(SessionMessage(request))
            return await future
        except anyio.BrokenResourceError:
            raise _make_closed_error() from None
        except asyncio.CancelledError:
            with contextlib.suppress(ConnectionError, RuntimeError):
                writer.write(SessionMessage(_cancellation(number)))
            raise
        finally:
            del self._pending[number]
            if future.done() and not future.cancelled():
                future.exception()  # marks it as seen: nothing awaits an error that came with a cancellation

    def resolve(self, value: Json) -> bool:
        """True if the value is the answer to a request under way, which has it now.

        Raises ValueError for an answer that is no JSON-RPC message.
        """
        if not isinstance(value, dict) or "method" in value or not isinstance(number := value.get("id"), int | str):
            return False
        if isinstance(number, bool) or (future := self._pending.get(coerce_request_id(number))) is None:
            return False
        outcome: object = value.get("result")
        if value.keys() != _PLAIN_ANSWER or value["jsonrpc"] != "2.0" or not isinstance(outcome, dict):
            outcome = to_message(value)
        if not future.done():
            _settle(future, outcome)
        return True


def _settle(future: asyncio.Future[dict[str, Any]], outcome: object) -> None:
    match outcome:
        case mcp_types.JSONRPCResponse(result=result):
            future.set_result(result)
        case mcp_types.JSONRPCError(error=error):
            future.set_exception(MCPError(code=error.code, message=error.message, data=error.data))
        case dict():
            future.set_result(outcome)


def _make_closed_error() -> MCPError:
    return MCPError(code=mcp_types.CONNECTION_CLOSED, message="Connection closed")


def _cancellation(number: int) -> mcp_types.JSONRPCNotification:
    params = {"requestId": number, "reason": "caller cancelled"}
    return mcp_types.JSONRPCNotification(jsonrpc="2.0", method="notifications/cancelled", params=params)
