"""An MCP SDK transport over the pipes of a sandboxed process.

The SDK's own stdio transport starts the process itself; here the sandbox does, and what the server writes is bounded:
a line longer than `Limits.line_bytes` or nested deeper than the parser allows closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from types import TracebackType

import anyio
import mcp_types
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from gymcp.mcp_servers.sandbox.spec import SandboxProcess

Received = SessionMessage | Exception
MAX_QUOTE = 120
"""Bytes of a line that is no message, in the error."""
DISCARDED = 1_000_000
READ_AHEAD = 64
"""Messages read before the session took them; a server that floods is held back by its own pipe."""


class PipeWriter:
    """Writes messages straight to the server's standard input (the SDK's WriteStream)."""

    def __init__(self, stdin: asyncio.StreamWriter) -> None:
        self._stdin = stdin

    async def send(self, item: SessionMessage, /) -> None:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        try:
            self._stdin.write(line.encode() + b"\n")
            await self._stdin.drain()
        except (ConnectionError, RuntimeError) as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        self._stdin.close()

    async def __aenter__(self) -> PipeWriter:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class LineTooLong(ValueError):
    """A line over `Limits.line_bytes`."""


class Violation:
    """What the server did that no MCP server may, if anything; read when the connection has closed."""

    def __init__(self) -> None:
        self.text: str | None = None


@contextlib.asynccontextmanager
async def pipe_transport(
    process: SandboxProcess, violation: Violation
) -> AsyncIterator[tuple[anyio.abc.ObjectReceiveStream[Received], PipeWriter]]:
    """The (read, write) streams the SDK's Client takes. A breach of the framing is noted in `violation`."""
    send, receive = anyio.create_memory_object_stream[Received](READ_AHEAD)
    reader = asyncio.create_task(_read_lines(process.stdout, send, violation))
    try:
        yield receive, PipeWriter(process.stdin)
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        send.close()
        receive.close()


async def _read_lines(
    stdout: asyncio.StreamReader, send: anyio.abc.ObjectSendStream[Received], violation: Violation
) -> None:
    line = b""
    async with send:
        try:
            while line := await _next_line(stdout):
                if line.isspace():
                    continue
                await send.send(SessionMessage(_parsed(line)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            return  # the session or the pipe is gone, which the session reports
        except ValueError as error:
            # `readline` raises ValueError for a line over the limit, pydantic for what is not JSON-RPC or nested too
            # deep. What a server writes after that cannot be trusted to line up with requests any more.
            violation.text = _say(error, line)
    with contextlib.suppress(ConnectionError):
        while await stdout.read(DISCARDED):  # nobody reads what comes now: it would be kept, twice a line's limit of it
            pass


async def _next_line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readline()
    except ValueError as error:
        raise LineTooLong from error


def _parsed(line: bytes) -> mcp_types.JSONRPCMessage:
    """The message, with a question mark for every half of a character. Raises ValueError for what is none."""
    try:
        return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        if "hex escape" not in str(error):
            raise
        try:  # half of a character, which JSON can say and no text can hold
            line = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        except RecursionError:
            raise error from None
        return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False)


def _say(error: ValueError, line: bytes) -> str:
    if isinstance(error, LineTooLong):
        return "a line on standard output is longer than any message may be"
    found = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
    why = f" ({found['msg']})" if found is not None and "recursion" in found["msg"] else ""
    return f"a line on standard output is not a JSON-RPC message{why}: {line[:MAX_QUOTE].decode(errors='replace')!r}"
