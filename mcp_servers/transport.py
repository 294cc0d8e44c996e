"""An MCP SDK transport over the pipes of a sandboxed process.

The SDK's own stdio transport starts the process itself; here the sandbox does, and what the server writes is bounded:
a line longer than `Limits.line_bytes` or nested deeper than the parser allows closes the connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from types import TracebackType
from typing import TYPE_CHECKING

import anyio
import mcp_types
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from pydantic import ValidationError

from gymcp.errors import EnvInfraError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.programs import http_bridge
from gymcp.mcp_servers.sandbox.spec import SandboxProcess

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

MAX_WHY = 1000
_FAILURES: dict[str, type[EnvInfraError]] = {
    http_bridge.BROKE_PROTOCOL: ProtocolError,
    http_bridge.NEVER_OPENED: ServerTimeout,
    http_bridge.LOST: ServerDied,
}
Received = SessionMessage | Exception
MAX_QUOTE = 120
"""Characters of a line that is no message, in the error."""
MAX_READ = 16_384
"""Bytes of such a line among which is looked for what must not be told."""
DISCARDED = 1_000_000
READ_AHEAD = 64
"""Messages read before the session took them; a server that floods is held back by its own pipe."""


class PipeWriter:
    """Writes messages straight to the server's standard input (the SDK's WriteStream).

    `headers`: each together with the HTTP headers that the SDK wants on it, for a bridge that posts them.
    """

    def __init__(self, stdin: asyncio.StreamWriter, *, headers: bool = False) -> None:
        self._stdin = stdin
        self._headers = headers

    async def send(self, item: SessionMessage, /) -> None:
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        if self._headers:
            wanted = item.metadata.headers if isinstance(item.metadata, ClientMessageMetadata) else None
            line = f'{{"headers": {json.dumps(wanted or {})}, "message": {line}}}'
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

    def __init__(self, redact: Callable[[str], str] | None = None) -> None:
        """`redact`: takes out what must not be told."""
        self._redact = redact
        self.text: str | None = None
        self.error: type[EnvInfraError] = ProtocolError
        """What it is to whoever waits for an answer."""

    def note_last_line(self, line: bytes) -> None:
        """A bridge's last one, which says how the server behind it was lost. Raises ValueError for what is none."""
        said = json.loads(line)
        if not isinstance(said, dict) or said.get("failure") not in _FAILURES:
            raise ValueError("a bridge's last line is not one")
        self.error = _FAILURES[said["failure"]]
        self.text = self.cut(str(said.get("why")), MAX_WHY)

    def cut(self, text: str, characters: int) -> str:
        """The beginning of what the server has said, which holds no part of what must not be told."""
        return (text if self._redact is None else self._redact(text))[:characters]


@contextlib.asynccontextmanager
async def pipe_transport(
    process: SandboxProcess, violation: Violation, *, headers: bool = False
) -> AsyncIterator[TransportStreams]:
    """The (read, write) streams the SDK's Client takes. A breach of the framing is noted in `violation`.

    `headers`: see `PipeWriter`.
    """
    send, receive = anyio.create_memory_object_stream[Received](READ_AHEAD)
    reader = asyncio.create_task(_read_lines(process.stdout, send, violation, bridged=headers))
    try:
        yield receive, PipeWriter(process.stdin, headers=headers)
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        send.close()
        receive.close()


async def _read_lines(
    stdout: asyncio.StreamReader, send: anyio.abc.ObjectSendStream[Received], violation: Violation, *, bridged: bool
) -> None:
    line = b""
    async with send:
        try:
            while line := await _next_line(stdout):
                if line.isspace():
                    continue
                if bridged and line.startswith(http_bridge.LAST_LINE.encode()):
                    violation.note_last_line(line[len(http_bridge.LAST_LINE) :])
                    return
                await send.send(SessionMessage(parsed(line)))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
            return  # the session or the pipe is gone, which the session reports
        except (ValueError, RecursionError) as error:
            # `readline` raises ValueError for a line over the limit, pydantic for what is not JSON-RPC or nested too
            # deep. What a server writes after that cannot be trusted to line up with requests any more.
            violation.text = _say(error, line, violation)
    with contextlib.suppress(ConnectionError):
        while await stdout.read(DISCARDED):  # nobody reads what comes now: it would be kept, twice a line's limit of it
            pass


async def _next_line(stdout: asyncio.StreamReader) -> bytes:
    try:
        return await stdout.readline()
    except ValueError as error:
        raise LineTooLong from error


def parsed(line: bytes) -> mcp_types.JSONRPCMessage:
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


def _say(error: Exception, line: bytes, violation: Violation) -> str:
    if isinstance(error, LineTooLong):
        return "a line on standard output is longer than any message may be"
    found = error.errors(include_url=False)[0] if isinstance(error, ValidationError) else None
    why = f" ({found['msg']})" if found is not None and "recursion" in found["msg"] else ""
    quoted = violation.cut(line[:MAX_READ].decode(errors="replace"), MAX_QUOTE)
    return f"a line on standard output is not a JSON-RPC message{why}: {quoted!r}"
