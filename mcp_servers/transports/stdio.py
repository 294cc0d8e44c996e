"""An MCP SDK transport over the pipes of a sandboxed process.

The SDK's own stdio transport starts the process itself; here the sandbox starts it. The server's output is bounded,
because all episodes of a process share one event loop. Bounded are the length of a line and the values in it, the
blocks of a result, the messages and requests that come before an answer, and the time on the loop that all of it takes.
An answer that is too large becomes an error of its request, and the server goes on. Any other violation closes the
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import SessionMessage

from gymcp.mcp_servers.loop_share import LoopShare, charge_steps
from gymcp.mcp_servers.programs import http_bridge
from gymcp.mcp_servers.sandbox.spec import SandboxProcess
from gymcp.mcp_servers.transports.direct_requests import DirectRequests
from gymcp.mcp_servers.transports.messages import (
    MANY_VALUES,
    TOO_LARGE,
    TooMuch,
    decode_line,
    has_many_values,
    to_message,
)
from gymcp.mcp_servers.transports.pipe_writer import MAX_ID_CHARS, IntakeCounter, PipeWriter
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.types import Json

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

Received = SessionMessage | Exception
MAX_QUOTE_CHARS = 120
"""Characters of a malformed line that the error quotes."""
MAX_REDACTED_BYTES = 16_384
"""Bytes of a malformed line that are searched for secret values before it is quoted."""
READ_AHEAD_MESSAGES = 64
"""Messages that are read before the session takes them. A server that floods is held back by its own pipe."""
MAX_BLOCKS = 250
"""Blocks of content in one result; consecutive texts count as one. Checking a block takes up to 0.1 ms."""
TOO_LONG = "is longer than any message may be"
_CHUNK_BYTES = 262_144
_MAX_SKIPPED_BYTES = 64_000_000
"""Bytes of a line whose request is answered with an error. A server that writes a longer line is given up."""
_LINES_PER_TURN = 50
"""Lines that are read before other tasks have a turn."""
_ANSWER_S, _BLOCK_S, _REQUEST_S = 200e-6, 40e-6, 200e-6
"""Seconds of the loop's time for the SDK to hand over an answer, per block of its content, and to deny a request."""
_MEASURED_LINE_BYTES = 4_096
"""Bytes of a line from which on the time to parse it is measured by itself."""
_SDK_TIME_FACTOR = 1.5
"""Factor from the time to parse a long line to the time of the SDK's checks of it."""
_END_BYTES = 300
"""Bytes at both ends of a line that is too long, in which the id of its request is searched."""
_ID = rb'"id"\s*:\s*("[^"\\]{0,100}"|-?[0-9]{1,18})'
_ID_IN_FRONT = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'\s*,\s*(?:"jsonrpc"|"result"|"error")'
)
_ID_AT_END = re.compile(rb"[}\]]\s*,\s*(?:\"jsonrpc\"\s*:\s*\"2\.0\"\s*,\s*)?" + _ID + rb"\s*\}\s*$")


@contextlib.asynccontextmanager
async def pipe_transport(
    process: SandboxProcess,
    violation: ProtocolViolation,
    *,
    line_bytes: int,
    headers: bool = False,
    direct: DirectRequests | None = None,
) -> AsyncIterator[TransportStreams]:
    """The (read, write) streams that the SDK's Client takes. A breach of the framing is recorded in `violation`.

    `line_bytes`: most bytes of one message. `headers`: see `PipeWriter`. `direct`: requests that go over the same pipes
    without the client.
    """
    send, receive = anyio.create_memory_object_stream[Received](READ_AHEAD_MESSAGES)
    intake = IntakeCounter(violation.share)
    writer = PipeWriter(process.stdin, intake, headers=headers)
    lines = _LineReader(process.stdout, line_bytes, violation.share)
    direct = direct or DirectRequests()
    direct.open(writer)
    reader = asyncio.create_task(_MessageReader(lines, send, writer, intake, violation, direct).run(bridged=headers))
    try:
        yield receive, writer
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        send.close()
        receive.close()


class _LineReader:
    """Reads a server's output line by line, no faster than the server's share of the loop's time allows."""

    def __init__(self, stdout: asyncio.StreamReader, limit: int, share: LoopShare) -> None:
        self.share = share
        self._stdout = stdout
        self._limit = limit
        self._buffer = bytearray()
        self._count = 0

    async def next(self) -> bytes | _OversizedLine:
        """The next line with its end; at the end of the stream the rest, then an empty text."""
        self._count += 1
        if self._count % _LINES_PER_TURN == 0:
            await asyncio.sleep(0)
        start = 0
        while (end := self._buffer.find(b"\n", start)) < 0:
            if len(self._buffer) > self._limit:
                return await self._skip_line()
            start = len(self._buffer)
            if not (chunk := await self._read_piece()):
                line = bytes(self._buffer)
                self._buffer.clear()
                return line
            self._buffer += chunk
        line = bytes(self._buffer[: end + 1])
        del self._buffer[: end + 1]
        return line if len(line) <= self._limit + 1 else _OversizedLine(line[:_END_BYTES], line[-_END_BYTES:], TOO_LONG)

    async def _skip_line(self) -> _OversizedLine:
        """Read past a line that is too long and return its ends. Raises TooMuch if it never ends."""
        head, tail = bytes(self._buffer[:_END_BYTES]), bytes(self._buffer[-_END_BYTES:])
        if not head.lstrip().startswith(b"{"):
            raise TooMuch(f"a line on standard output {TOO_LONG}")
        self._buffer.clear()
        skipped = 0
        while skipped <= _MAX_SKIPPED_BYTES:
            chunk = await self._read_piece()
            end = chunk.find(b"\n")
            if end >= 0 or not chunk:
                self._buffer += chunk[end + 1 :]
                return _OversizedLine(head, (tail + chunk[: max(end, 0)])[-_END_BYTES:], TOO_LONG)
            tail = (tail + chunk)[-_END_BYTES:]
            skipped += len(chunk)
        raise TooMuch(f"a line on standard output {TOO_LONG}")

    async def _read_piece(self) -> bytes:
        piece = await self._stdout.read(_CHUNK_BYTES)
        self.share.charge_read(len(piece))
        if wait_s := self.share.owed_s():
            # Nothing is read meanwhile, so that the server is held back by its pipe and does not fill our memory.
            with _pause_reading(self._stdout):
                await asyncio.sleep(wait_s)
        return piece

    async def drain(self) -> None:
        """Read to the end of the stream and drop everything."""
        self._buffer.clear()
        while await self._read_piece():
            pass


@contextlib.contextmanager
def _pause_reading(stdout: asyncio.StreamReader) -> Iterator[None]:
    """Leave the server's output in the pipe meanwhile. The stream itself would read on, up to twice its limit."""
    transport = getattr(stdout, "_transport", None)
    if transport is None or not transport.is_reading():  # paused by the stream, which alone may resume it
        yield
        return
    transport.pause_reading()
    try:
        yield
    finally:
        transport.resume_reading()


class _OversizedLine:
    """A line that is not parsed: the id of the request that it answers, if its ends show it, and the reason."""

    def __init__(self, head: bytes, tail: bytes, why: str) -> None:
        self._why = why
        match = _ID_IN_FRONT.match(head) or _ID_AT_END.search(tail)
        self._id: str | int | None = json.loads(match[1]) if match is not None else None

    def to_error(self) -> Json:
        """An error in place of the answer. Raises TooMuch if its request is not known."""
        if self._id is None:
            raise TooMuch(f"a line on standard output {self._why}")
        return _error_message(self._id, f"its answer {self._why}")


def _error_message(number: Any, why: str) -> Json:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": TOO_LARGE, "message": why}}


class _MessageReader:
    """Passes messages to the session, answers pings, and drops notifications, because the session uses none."""

    def __init__(
        self,
        lines: _LineReader,
        send: MemoryObjectSendStream[Received],
        writer: PipeWriter,
        intake: IntakeCounter,
        violation: ProtocolViolation,
        direct: DirectRequests,
    ) -> None:
        self._lines, self._send, self._writer = lines, send, writer
        self._intake, self._violation, self._direct = intake, violation, direct

    async def run(self, *, bridged: bool) -> None:
        await charge_steps(self._lines.share, self._read(bridged=bridged))

    async def _read(self, *, bridged: bool) -> None:
        line: bytes | _OversizedLine = b""
        async with self._send:
            try:
                while line := await self._lines.next():
                    self._intake.count_message()
                    if isinstance(line, _OversizedLine):
                        await self._pass_on(self._select(line.to_error()))
                    elif line.isspace():
                        continue
                    elif bridged and line.startswith(http_bridge.FAILURE_MARK.encode()):
                        self._violation.read_last_line(line[len(http_bridge.FAILURE_MARK) :])
                        return
                    else:
                        await self._handle(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                return  # the session or the pipe is gone, which the session reports
            except TooMuch as error:
                self._violation.text = str(error)
            except (ValueError, RecursionError) as error:
                # After a malformed line, later lines cannot be trusted to belong to the requests that they name.
                self._violation.text = _describe(error, line if isinstance(line, bytes) else b"", self._violation)
            finally:
                self._direct.close()
        with contextlib.suppress(ConnectionError):
            await self._lines.drain()

    async def _handle(self, line: bytes) -> None:
        began = time.thread_time() if len(line) > _MEASURED_LINE_BYTES else None
        if has_many_values(line):
            message = self._select(_OversizedLine(line[:_END_BYTES], line[-_END_BYTES:], MANY_VALUES).to_error())
        else:
            value = decode_line(line)
            if _is_notification(value):
                return
            if _is_ping(value):
                await self._writer.send(SessionMessage(to_message({"jsonrpc": "2.0", "id": value["id"], "result": {}})))
                return
            message = self._select(self._check_size(value))
        if began is not None:
            self._lines.share.charge(_SDK_TIME_FACTOR * (time.thread_time() - began))
        await self._pass_on(message)

    def _select(self, value: Json) -> mcp_types.JSONRPCMessage | None:
        """The message for the session; None for the answer to a direct request, which has it now. Raises ValueError."""
        return None if self._direct.resolve(value) else to_message(value)

    async def _pass_on(self, message: mcp_types.JSONRPCMessage | None) -> None:
        if message is None:
            return
        try:
            self._send.send_nowait(SessionMessage(message))  # a turn of the loop sooner
        except anyio.WouldBlock:
            await self._send.send(SessionMessage(message))

    def _check_size(self, value: Json) -> Json:
        """The message, or an error in its place if it has too many blocks. Raises TooMuch."""
        share = self._lines.share
        if isinstance(value, dict) and "method" in value:
            self._intake.count_request(value.get("id"))
            share.charge(_REQUEST_S)
            return value
        share.charge(_ANSWER_S)
        if isinstance(value, dict):
            if (fault := _join_texts(result := value.get("result"))) is not None:
                return _error_message(value.get("id"), f"its answer {fault}")
            if isinstance(result, dict) and isinstance(content := result.get("content"), list):
                share.charge(len(content) * _BLOCK_S)
        return value


def _is_notification(value: Json) -> bool:
    return (
        isinstance(value, dict)
        and "id" not in value
        and isinstance(value.get("method"), str)
        and value.get("jsonrpc") == "2.0"
        and isinstance(value.get("params", {}), dict)
    )


def _is_ping(value: Json) -> bool:
    number = value.get("id") if isinstance(value, dict) and value.get("method") == "ping" else None
    whole = isinstance(number, int) and not isinstance(number, bool)
    return whole or (isinstance(number, str) and len(number) <= MAX_ID_CHARS)


def _join_texts(result: Json) -> str | None:
    """Join consecutive texts of a result with many blocks; the fault, in words, if it still has too many."""
    content = result.get("content") if isinstance(result, dict) else None
    if not isinstance(content, list) or len(content) <= MAX_BLOCKS:
        return None
    blocks: list[Json] = []
    texts: list[str] = []
    for block in content:
        if isinstance(block, dict) and block.get("type") == "text" and isinstance(block.get("text"), str):
            texts.append(block["text"])
            continue
        if texts:
            blocks.append({"type": "text", "text": "\n".join(texts)})
            texts = []
        blocks.append(block)
        if len(blocks) > MAX_BLOCKS:
            return f"has more than {MAX_BLOCKS} blocks of content"
    if texts:
        blocks.append({"type": "text", "text": "\n".join(texts)})
    result["content"] = blocks
    return None


def _describe(error: Exception, line: bytes, violation: ProtocolViolation) -> str:
    why = " (recursion limit exceeded)" if "recursion" in str(error) else ""
    quoted = violation.excerpt(line[:MAX_REDACTED_BYTES].decode(errors="replace"), MAX_QUOTE_CHARS)
    return f"a line on standard output is not a JSON-RPC message{why}: {quoted!r}"
