"""An MCP SDK transport over the pipes of a sandboxed process.

The SDK's own stdio transport starts the process itself; here the sandbox does, and what the server writes is bounded,
because all episodes of a process share one event loop: the length of a line and the values in it, the blocks of a
result, the messages and requests that come before an answer, and the loop's time that all of it takes. An answer that
is too large is an error of its request, and the server goes on; anything else that no server may do closes the
connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio
import mcp_types
from anyio.streams.memory import MemoryObjectSendStream
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from pydantic_core import from_json

from gymcp.errors import EnvInfraError, ProtocolError, ServerDied, ServerTimeout
from gymcp.mcp_servers.loop_share import LoopShare
from gymcp.mcp_servers.programs import http_bridge
from gymcp.mcp_servers.sandbox.spec import SandboxProcess
from gymcp.types import Json

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
READ_AHEAD = 64
"""Messages read before the session took them; a server that floods is held back by its own pipe."""
MAX_VALUES = 100_000
"""Values in one message, counted by the marks of JSON outside strings; to parse them takes 15 ms."""
MAX_BLOCKS = 250
"""Blocks of content in one result, texts that follow each other being one; to check one takes up to 0.1 ms."""
MAX_MESSAGES = 100_000
"""Messages before the answer to one request."""
MAX_ASKED = 100
"""Requests of a server before its answer to one of ours; its pings are counted as messages."""
MAX_ID_CHARS = 256
"""Of a server's own requests, whose ids are sent back."""
MANY_VALUES = f"has more than {MAX_VALUES} values"
TOO_LONG = "is longer than any message may be"
TOO_LARGE = -32098
"""JSON-RPC code that stands for an answer that was too large to be read."""
_CHUNK = 262_144
_LONGEST_CUT = 64_000_000
"""Bytes of a line whose request is answered with an error; of a longer one the server is given up."""
_MARKS = (b",", b":", b"{", b"[")
_TURN_LINES = 50
"""Lines that are taken before other tasks have a turn."""
_READ_S, _READ_S_PER_BYTE = 50e-6, 4e-9
"""What it takes of the loop's time to be handed a piece of output."""
_LINE_S, _MESSAGE_S, _PART_S = 8e-6, 200e-6, 40e-6
"""The same to look at a line, and to have the SDK take a message, and a block or a tool of it."""
_SMALL = 4_096
"""Bytes of a line up to which `_LINE_S` is what it takes; to take the time of a longer one is worth its own time."""
_AS_MUCH_AGAIN = 2.5
"""Times what it takes to read a line, which the SDK takes with it."""
_ENDS = 300
"""Bytes at both ends of a line that is too long, where the id of the request is looked for."""
_ID = rb'"id"\s*:\s*("[^"\\]{0,100}"|-?[0-9]{1,18})'
_ID_IN_FRONT = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?' + _ID + rb'\s*,\s*(?:"jsonrpc"|"result"|"error")'
)
_ID_AT_END = re.compile(rb"[}\]]\s*,\s*(?:\"jsonrpc\"\s*:\s*\"2\.0\"\s*,\s*)?" + _ID + rb"\s*\}\s*$")


class PipeWriter:
    """Writes messages straight to the server's standard input (the SDK's WriteStream).

    `headers`: each together with the HTTP headers that the SDK wants on it, for a bridge that posts them.
    """

    def __init__(self, stdin: asyncio.StreamWriter, intake: Intake, *, headers: bool = False) -> None:
        self._stdin = stdin
        self._intake = intake
        self._headers = headers

    async def send(self, item: SessionMessage, /) -> None:
        if isinstance(item.message, mcp_types.JSONRPCRequest):
            self._intake.begin()
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


class TooMuch(ValueError):
    """More than a server may send, in words."""


class Violation:
    """What the server did that no MCP server may, read when the connection has closed; and what it took of the loop."""

    def __init__(self, redact: Callable[[str], str] | None = None) -> None:
        """`redact`: takes out what must not be told."""
        self._redact = redact
        self.text: str | None = None
        self.error: type[EnvInfraError] = ProtocolError
        """What it is to whoever waits for an answer."""
        self.share = LoopShare()
        """Of the event loop, which what the server sends has taken."""

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


class Intake:
    """What a server has sent since it was asked last."""

    def __init__(self, share: LoopShare) -> None:
        self._share = share
        self._messages = 0
        self._asked = 0

    def begin(self) -> None:
        """Another request is sent."""
        self._messages = self._asked = 0
        self._share.grant()

    def count(self) -> None:
        """A message. Raises TooMuch."""
        self._messages += 1
        if self._messages > MAX_MESSAGES:
            raise TooMuch(f"it sends more than {MAX_MESSAGES} messages before it answers")

    def count_asked(self, number: object) -> None:
        """A request of the server's. Raises TooMuch."""
        self._asked += 1
        if self._asked > MAX_ASKED:
            raise TooMuch(f"it sends more than {MAX_ASKED} requests before it answers")
        if isinstance(number, str) and len(number) > MAX_ID_CHARS:
            raise TooMuch(f"the id of its request has more than {MAX_ID_CHARS} characters")


@contextlib.asynccontextmanager
async def pipe_transport(
    process: SandboxProcess, violation: Violation, *, line_bytes: int, headers: bool = False
) -> AsyncIterator[TransportStreams]:
    """The (read, write) streams the SDK's Client takes. A breach of the framing is noted in `violation`.

    `line_bytes`: of a message, at most. `headers`: see `PipeWriter`.
    """
    send, receive = anyio.create_memory_object_stream[Received](READ_AHEAD)
    intake = Intake(violation.share)
    writer = PipeWriter(process.stdin, intake, headers=headers)
    lines = _Lines(process.stdout, line_bytes, violation.share)
    reader = asyncio.create_task(_Reader(lines, send, writer, intake, violation).run(bridged=headers))
    try:
        yield receive, writer
    finally:
        reader.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reader
        send.close()
        receive.close()


class _Lines:
    """What a server writes, line by line, no faster than its share of the loop's time allows."""

    def __init__(self, stdout: asyncio.StreamReader, limit: int, share: LoopShare) -> None:
        self.share = share
        self._stdout = stdout
        self._limit = limit
        self._kept = bytearray()
        self._taken = 0

    async def next(self) -> bytes | _Cut:
        """With its end; what is left at the end of the stream; nothing after that."""
        self._taken += 1
        if self._taken % _TURN_LINES == 0:
            await asyncio.sleep(0)
        self.share.charge(_LINE_S)
        start = 0
        while (end := self._kept.find(b"\n", start)) < 0:
            if len(self._kept) > self._limit:
                return await self._cut()
            start = len(self._kept)
            if not (chunk := await self._piece()):
                line = bytes(self._kept)
                self._kept.clear()
                return line
            self._kept += chunk
        line = bytes(self._kept[: end + 1])
        del self._kept[: end + 1]
        return line if len(line) <= self._limit + 1 else _Cut(line[:_ENDS], line[-_ENDS:], TOO_LONG)

    async def _cut(self) -> _Cut:
        """The ends of a line that is too long, once all of it has passed. Raises TooMuch for one without an end."""
        head, tail = bytes(self._kept[:_ENDS]), bytes(self._kept[-_ENDS:])
        if not head.lstrip().startswith(b"{"):
            raise TooMuch(f"a line on standard output {TOO_LONG}")
        self._kept.clear()
        passed = 0
        while passed <= _LONGEST_CUT:
            chunk = await self._piece()
            end = chunk.find(b"\n")
            if end >= 0 or not chunk:
                self._kept += chunk[end + 1 :]
                return _Cut(head, (tail + chunk[: max(end, 0)])[-_ENDS:], TOO_LONG)
            tail = (tail + chunk)[-_ENDS:]
            passed += len(chunk)
        raise TooMuch(f"a line on standard output {TOO_LONG}")

    async def _piece(self) -> bytes:
        piece = await self._stdout.read(_CHUNK)
        self.share.charge(_READ_S + len(piece) * _READ_S_PER_BYTE)
        if wait_s := self.share.owed_s():
            # Nothing is read meanwhile, so that the server is held back by its pipe, not by our memory.
            with _unread(self._stdout):
                await asyncio.sleep(wait_s)
        return piece

    async def pass_by(self) -> None:
        """To the end of the stream: nobody wants what comes now."""
        self._kept.clear()
        while await self._piece():
            pass


@contextlib.contextmanager
def _unread(stdout: asyncio.StreamReader) -> Iterator[None]:
    """Leaves in the pipe what comes meanwhile; the stream itself would read on up to twice its limit."""
    transport = getattr(stdout, "_transport", None)
    if transport is None or not transport.is_reading():  # stopped by the stream, which alone may start it again
        yield
        return
    transport.pause_reading()
    try:
        yield
    finally:
        transport.resume_reading()


class _Cut:
    """A line that is not read: the request it answers, if that is to be seen, and why."""

    def __init__(self, head: bytes, tail: bytes, why: str) -> None:
        self._why = why
        found = _ID_IN_FRONT.match(head) or _ID_AT_END.search(tail)
        self._id: str | int | None = json.loads(found[1]) if found is not None else None

    def answer(self) -> mcp_types.JSONRPCMessage:
        """An error in its place. Raises TooMuch if nobody can say which request it was to answer."""
        if self._id is None:
            raise TooMuch(f"a line on standard output {self._why}")
        return _refused(self._id, f"its answer {self._why}")


def _refused(number: Any, why: str) -> mcp_types.JSONRPCMessage:
    return message_of({"jsonrpc": "2.0", "id": number, "error": {"code": TOO_LARGE, "message": why}})


class _Reader:
    """Hands on to the session what it waits for, answers pings, and drops notifications, of which it uses none."""

    def __init__(
        self,
        lines: _Lines,
        send: MemoryObjectSendStream[Received],
        writer: PipeWriter,
        intake: Intake,
        violation: Violation,
    ) -> None:
        self._lines, self._send, self._writer = lines, send, writer
        self._intake, self._violation = intake, violation

    async def run(self, *, bridged: bool) -> None:
        line: bytes | _Cut = b""
        async with self._send:
            try:
                while line := await self._lines.next():
                    self._intake.count()
                    if isinstance(line, _Cut):
                        await self._hand_on(line.answer())
                    elif line.isspace():
                        continue
                    elif bridged and line.startswith(http_bridge.FAILURE_MARK.encode()):
                        self._violation.note_last_line(line[len(http_bridge.FAILURE_MARK) :])
                        return
                    else:
                        await self._take(line)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError, ConnectionError):
                return  # the session or the pipe is gone, which the session reports
            except TooMuch as error:
                self._violation.text = str(error)
            except (ValueError, RecursionError) as error:
                # What a server writes after what is no message cannot be trusted to line up with requests any more.
                self._violation.text = _say(error, line if isinstance(line, bytes) else b"", self._violation)
        with contextlib.suppress(ConnectionError):
            await self._lines.pass_by()

    async def _take(self, line: bytes) -> None:
        share, is_ping = self._lines.share, False
        with share.charged(_AS_MUCH_AGAIN) if len(line) > _SMALL else contextlib.nullcontext():
            if has_many_values(line):
                message = _Cut(line[:_ENDS], line[-_ENDS:], MANY_VALUES).answer()
            else:
                said = decoded(line)
                if _is_notification(said):
                    return
                is_ping = _is_ping(said)
                message = (
                    message_of({"jsonrpc": "2.0", "id": said["id"], "result": {}}) if is_ping else self._bounded(said)
                )
        share.charge(_READ_S if is_ping else _MESSAGE_S)
        if is_ping:
            await self._writer.send(SessionMessage(message))
        else:
            await self._hand_on(message)

    async def _hand_on(self, message: mcp_types.JSONRPCMessage) -> None:
        try:
            self._send.send_nowait(SessionMessage(message))  # a turn of the loop sooner
        except anyio.WouldBlock:
            await self._send.send(SessionMessage(message))

    def _bounded(self, said: Json) -> mcp_types.JSONRPCMessage:
        if isinstance(said, dict):
            if "method" in said:
                self._intake.count_asked(said.get("id"))
            elif (fault := _joined(result := said.get("result"))) is not None:
                return _refused(said.get("id"), f"its answer {fault}")
            elif isinstance(result, dict):
                parts = [part for part in (result.get("content"), result.get("tools")) if isinstance(part, list)]
                self._lines.share.charge(sum(map(len, parts)) * _PART_S)
        return message_of(said)


def _is_notification(said: Json) -> bool:
    return (
        isinstance(said, dict)
        and "id" not in said
        and isinstance(said.get("method"), str)
        and said.get("jsonrpc") == "2.0"
        and isinstance(said.get("params", {}), dict)
    )


def _is_ping(said: Json) -> bool:
    number = said.get("id") if isinstance(said, dict) and said.get("method") == "ping" else None
    whole = isinstance(number, int) and not isinstance(number, bool)
    return whole or (isinstance(number, str) and len(number) <= MAX_ID_CHARS)


def _joined(result: Json) -> str | None:
    """Makes one of texts that follow each other, if there are many; why they are still too many, in words."""
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


def decoded(line: bytes) -> Json:
    """Value of the line, with a question mark for every half of a character. Raises ValueError if it is not JSON."""
    try:
        return from_json(line)
    except ValueError as error:
        if "hex escape" not in str(error):
            raise
        try:  # half of a character, which JSON can say and no text can hold
            line = json.dumps(json.loads(line), ensure_ascii=False).encode(errors="replace")
        except RecursionError:
            raise error from None
        return from_json(line)


def message_of(said: Json) -> mcp_types.JSONRPCMessage:
    """Raises ValueError for what is no message."""
    return mcp_types.jsonrpc_message_adapter.validate_python(said, by_name=False)


def parsed(line: bytes) -> mcp_types.JSONRPCMessage:
    """The message of the line. Raises ValueError for what is none, and for more values than one may hold."""
    if has_many_values(line):
        raise TooMuch(MANY_VALUES)
    return message_of(decoded(line))


def has_many_values(line: bytes, most: int = MAX_VALUES) -> bool:
    """True if the line holds more than `most`; counted without parsing it."""
    if len(line) <= most or sum(map(line.count, _MARKS)) <= most:
        return False
    bare = line.replace(b"\\\\", b"").replace(b'\\"', b"")
    if bare.count(b'"') > 2 * most + 2:  # a mark stands between any two strings
        return True
    outside = b"".join(bare.split(b'"')[::2])
    return sum(map(outside.count, _MARKS)) > most


def _say(error: Exception, line: bytes, violation: Violation) -> str:
    why = " (recursion limit exceeded)" if "recursion" in str(error) else ""
    quoted = violation.cut(line[:MAX_READ].decode(errors="replace"), MAX_QUOTE)
    return f"a line on standard output is not a JSON-RPC message{why}: {quoted!r}"
