"""Transports that play a cassette in a server's place, or record one on the way to the server."""

from __future__ import annotations

import contextlib
import functools
import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

import anyio
import mcp_types
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCMessage, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

from gymcp.errors import CassetteMiss
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.cassette import (
    RECORD,
    Cassette,
    Key,
    add_to_cassette,
    check_tools,
    key_of,
    read_cassette,
)
from gymcp.mcp_servers.transports.http_remote import redaction_for, remote_transport
from gymcp.mcp_servers.transports.stdio import ProtocolViolation, Received
from gymcp.mcp_servers.transports.tapped_streams import TappedStream, redact_transport
from gymcp.types import Json

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

PROTOCOL = "2025-11-25"
"""What a player speaks, whatever was spoken when its cassette was recorded."""
REPLAY_WIRE: Literal["legacy"] = "legacy"
ROOM = 64
"""Answers that wait to be read; a session asks one thing at a time."""
SHOWN = 500
"""Characters of arguments in the message of a miss."""
_OF_THE_WIRE = ("_meta", "resultType", "ttlMs", "cacheScope")
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@contextlib.asynccontextmanager
async def played(spec: ServerSpec, task: str, violation: ProtocolViolation) -> AsyncIterator[TransportStreams]:
    """A server of recorded answers, for one episode. Raises ConfigError where the cassette cannot be played."""
    assert spec.cassette is not None
    found = spec.cassette.stat() if spec.cassette.exists() else None
    tape = _tape(spec.cassette, found.st_mtime_ns if found else 0, found.st_size if found else 0)
    send, receive = anyio.create_memory_object_stream[Received](ROOM)
    with send, receive:
        yield receive, _Player(spec, task, tape, send, violation)


@functools.lru_cache(maxsize=8)
def _tape(path: Path, _modified: int, _size: int) -> Cassette:
    """Read once for all episodes that play it: they only look."""
    return read_cassette(path)


class _Player:
    """What the session writes to; answers are there at once."""

    def __init__(
        self,
        spec: ServerSpec,
        task: str,
        tape: Cassette,
        answers: anyio.streams.memory.MemoryObjectSendStream[Received],
        violation: ProtocolViolation,
    ) -> None:
        self._spec, self._task, self._tape = spec, task, tape
        self._answers = answers
        self._violation = violation
        self._times: Counter[Key] = Counter()

    async def send(self, item: SessionMessage, /) -> None:
        asked = item.message
        if not isinstance(asked, JSONRPCRequest):
            return
        match asked.method:
            case "initialize":
                info = {"protocolVersion": PROTOCOL, "capabilities": {"tools": {}}}
                answer: dict[str, Json] = {
                    "result": {**info, "serverInfo": {"name": "", "version": "", **self._tape.server_info}}
                }
            case "tools/list":
                answer = {"result": {"tools": self._tape.tools}}
            case "tools/call":
                found = self._find(asked.params or {})
                if found is None:
                    await self._answers.aclose()
                    return
                answer = found
            case _:
                answer = {"error": {"code": mcp_types.METHOD_NOT_FOUND, "message": "not on a cassette"}}
        await self._answers.send(SessionMessage(_message({"jsonrpc": "2.0", "id": asked.id, **answer})))

    def _find(self, params: dict[str, Any]) -> dict[str, Json] | None:
        """The answer; None, and a violation, where the cassette has none."""
        name, arguments = params.get("name", ""), params.get("arguments") or {}
        key = key_of(self._spec, self._task, name, arguments)
        answers = self._tape.answers.get(key, [])
        number = self._times[key]
        self._times[key] += 1
        if number < len(answers):
            return answers[number]
        if answers and self._spec.state == "stateless":
            return answers[0]
        times = f", asked {number + 1} times and recorded {len(answers)}" if answers else ""
        in_task = "" if key[0] is None else f" in task '{self._task}'"
        shown = json.dumps(arguments, ensure_ascii=False)[:SHOWN]
        self._violation.text = f"{shown}{in_task} is not on cassette '{self._spec.cassette}'{times}; {RECORD}"
        self._violation.error = CassetteMiss
        return None

    async def aclose(self) -> None:
        await self._answers.aclose()

    async def __aenter__(self) -> _Player:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class Recorder:
    """Listens to one session; what it has heard goes to the cassette when the session ends."""

    def __init__(self, spec: ServerSpec, task: str) -> None:
        self._spec, self._task = spec, task
        self._asked: dict[Any, JSONRPCRequest] = {}
        self._listing: list[Json] = []
        self.tape = Cassette()

    def check(self) -> None:
        """Raises IntegrityError where the tools are others than on the cassette, ConfigError where it is none."""
        check_tools(self._spec, self.tape)

    @contextlib.asynccontextmanager
    async def recorded(
        self, transport: AbstractAsyncContextManager[TransportStreams]
    ) -> AsyncIterator[TransportStreams]:
        redaction = redaction_for(self._spec)
        async with transport as (read, write):
            try:
                yield (
                    TappedStream(read, lambda item: self.heard(item.message)),
                    TappedStream(write, lambda item: self.said(item.message)),
                )
            finally:
                add_to_cassette(self._spec, self.tape, redaction)

    def said(self, message: JSONRPCMessage) -> None:
        if isinstance(message, JSONRPCRequest):
            self._asked[message.id] = message
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._asked.pop((message.params or {}).get("requestId"), None)

    def heard(self, message: JSONRPCMessage) -> None:
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return
        asked = self._asked.pop(message.id, None)
        if asked is None:
            return
        if isinstance(message, JSONRPCResponse):
            self._note_result(asked, message.result)
        elif asked.method == "tools/call" and message.error.code not in _BROKEN:
            error = {"code": message.error.code, "message": message.error.message}
            self._note_call(asked, {"error": error})

    def _note_result(self, asked: JSONRPCRequest, result: dict[str, Json]) -> None:
        self.tape.server_info = (result.get("_meta") or {}).get(_SERVER_INFO) or self.tape.server_info
        match asked.method:
            case "initialize":
                self.tape.server_info = result.get("serverInfo") or {}
            case "tools/list":
                if not (asked.params or {}).get("cursor"):
                    self._listing = []
                self._listing += result.get("tools") or []
                if not result.get("nextCursor"):
                    self.tape.tools = self._listing
            case "tools/call":
                plain = {name: value for name, value in result.items() if name not in _OF_THE_WIRE}
                self._note_call(asked, {"result": plain})

    def _note_call(self, asked: JSONRPCRequest, answer: dict[str, Json]) -> None:
        params = asked.params or {}
        key = key_of(self._spec, self._task, params.get("name", ""), params.get("arguments"))
        self.tape.answers.setdefault(key, []).append(answer)


_BROKEN = (mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT)
"""Errors that say nothing of the tool: not for a cassette."""


def _message(plain: dict[str, Json]) -> JSONRPCMessage:
    return mcp_types.jsonrpc_message_adapter.validate_python(plain, by_name=False)


def remote_streams(
    spec: ServerSpec, task: str, violation: ProtocolViolation
) -> tuple[AbstractAsyncContextManager[TransportStreams], Recorder | None]:
    """The streams of a server elsewhere: live, recorded or played; none says what variables stand for."""
    redaction = redaction_for(spec)
    if spec.cassette is not None and not spec.recording:
        return redact_transport(played(spec, task, violation), redaction, violation.share), None
    live = redact_transport(remote_transport(spec, violation), redaction, violation.share)
    if spec.cassette is None:
        return live, None
    recorder = Recorder(spec, task)
    return recorder.recorded(live), recorder
