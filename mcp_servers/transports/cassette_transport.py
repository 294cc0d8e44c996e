"""Transports that replay a cassette instead of calling a server, or record one on the way to the server."""

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
from mcp_types import JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse

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
from gymcp.mcp_servers.transports.messages import to_message
from gymcp.mcp_servers.transports.stdio import Received
from gymcp.mcp_servers.transports.tapped_streams import TappedStream, redact_transport
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.types import Json

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

REPLAY_PROTOCOL = "2025-11-25"
"""Protocol version of a replay, whatever version was spoken when the cassette was recorded."""
REPLAY_WIRE: Literal["legacy"] = "legacy"
MAX_WAITING_ANSWERS = 64
"""Answers that wait to be read. A session sends one request at a time."""
MAX_SHOWN_CHARS = 500
"""Characters of a call's arguments in the message of a cassette miss."""
_TRANSPORT_FIELDS = ("_meta", "resultType", "ttlMs", "cacheScope")
"""Fields of a result that belong to the transport and are not recorded."""
_SERVER_INFO = "io.modelcontextprotocol/serverInfo"


@contextlib.asynccontextmanager
async def replay_transport(
    spec: ServerSpec, task: str, violation: ProtocolViolation
) -> AsyncIterator[TransportStreams]:
    """Streams to the recorded answers of a server, for one episode. Raises ConfigError for an unusable cassette."""
    assert spec.cassette is not None
    status = spec.cassette.stat() if spec.cassette.exists() else None
    cassette = _load(spec.cassette, status.st_mtime_ns if status else 0, status.st_size if status else 0)
    send, receive = anyio.create_memory_object_stream[Received](MAX_WAITING_ANSWERS)
    with send, receive:
        yield receive, _CassettePlayer(spec, task, cassette, send, violation)


@functools.lru_cache(maxsize=8)
def _load(path: Path, _modified: int, _size: int) -> Cassette:
    """Read a cassette once for all episodes that replay it; they do not change it."""
    return read_cassette(path)


class _CassettePlayer:
    """The stream that the session writes to. It answers every request at once."""

    def __init__(
        self,
        spec: ServerSpec,
        task: str,
        cassette: Cassette,
        answers: anyio.streams.memory.MemoryObjectSendStream[Received],
        violation: ProtocolViolation,
    ) -> None:
        self._spec, self._task, self._cassette = spec, task, cassette
        self._answers = answers
        self._violation = violation
        self._calls: Counter[Key] = Counter()

    async def send(self, item: SessionMessage, /) -> None:
        request = item.message
        if not isinstance(request, JSONRPCRequest):
            return
        match request.method:
            case "initialize":
                info = {"protocolVersion": REPLAY_PROTOCOL, "capabilities": {"tools": {}}}
                answer: dict[str, Json] = {
                    "result": {**info, "serverInfo": {"name": "", "version": "", **self._cassette.server_info}}
                }
            case "tools/list":
                answer = {"result": {"tools": self._cassette.tools}}
            case "tools/call":
                recorded = self._find_answer(request.params or {})
                if recorded is None:
                    await self._answers.aclose()
                    return
                answer = recorded
            case _:
                answer = {"error": {"code": mcp_types.METHOD_NOT_FOUND, "message": "not on a cassette"}}
        await self._answers.send(SessionMessage(to_message({"jsonrpc": "2.0", "id": request.id, **answer})))

    def _find_answer(self, params: dict[str, Any]) -> dict[str, Json] | None:
        """The recorded answer. If the cassette has none: None, after a violation was recorded."""
        name, arguments = params.get("name", ""), params.get("arguments") or {}
        key = key_of(self._spec, self._task, name, arguments)
        answers = self._cassette.answers.get(key, [])
        number = self._calls[key]
        self._calls[key] += 1
        if number < len(answers):
            return answers[number]
        is_stateless = key[0] is None
        if answers and is_stateless:
            return answers[0]
        times = f", asked {number + 1} times and recorded {len(answers)}" if answers else ""
        in_task = "" if is_stateless else f" in task '{self._task}'"
        arguments_text = json.dumps(arguments, ensure_ascii=False)[:MAX_SHOWN_CHARS]
        self._violation.text = f"{arguments_text}{in_task} is not on cassette '{self._spec.cassette}'{times}; {RECORD}"
        self._violation.error = CassetteMiss
        return None

    async def aclose(self) -> None:
        await self._answers.aclose()

    async def __aenter__(self) -> _CassettePlayer:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self.aclose()


class Recorder:
    """Listens to one session and adds its answers to the cassette when the session ends."""

    def __init__(self, spec: ServerSpec, task: str) -> None:
        self._spec, self._task = spec, task
        self._pending: dict[Any, JSONRPCRequest] = {}
        self._listing: list[Json] = []
        self.heard = Cassette()

    def check(self) -> None:
        """Raise IntegrityError if the server's tools are not those on the cassette, ConfigError if it is malformed."""
        check_tools(self._spec, self.heard)

    @contextlib.asynccontextmanager
    async def record(self, transport: AbstractAsyncContextManager[TransportStreams]) -> AsyncIterator[TransportStreams]:
        redaction = redaction_for(self._spec)
        async with transport as (read, write):
            try:
                yield TappedStream(read, self.note_answer), TappedStream(write, self.note_request)
            finally:
                add_to_cassette(self._spec, self.heard, redaction)

    async def note_request(self, item: SessionMessage) -> None:
        message = item.message
        if isinstance(message, JSONRPCRequest):
            self._pending[message.id] = message
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            self._pending.pop((message.params or {}).get("requestId"), None)

    async def note_answer(self, item: SessionMessage) -> None:
        message = item.message
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return
        request = self._pending.pop(message.id, None)
        if request is None:
            return
        if isinstance(message, JSONRPCResponse):
            self._note_result(request, message.result)
        elif request.method == "tools/call" and message.error.code not in _TRANSPORT_ERRORS:
            error = {"code": message.error.code, "message": message.error.message}
            self._note_call(request, {"error": error})

    def _note_result(self, request: JSONRPCRequest, result: dict[str, Json]) -> None:
        self.heard.server_info = (result.get("_meta") or {}).get(_SERVER_INFO) or self.heard.server_info
        match request.method:
            case "initialize":
                self.heard.server_info = result.get("serverInfo") or {}
            case "tools/list":
                if not (request.params or {}).get("cursor"):
                    self._listing = []
                self._listing += result.get("tools") or []
                if not result.get("nextCursor"):
                    self.heard.tools = self._listing
            case "tools/call":
                plain = {name: value for name, value in result.items() if name not in _TRANSPORT_FIELDS}
                self._note_call(request, {"result": plain})

    def _note_call(self, request: JSONRPCRequest, answer: dict[str, Json]) -> None:
        params = request.params or {}
        key = key_of(self._spec, self._task, params.get("name", ""), params.get("arguments"))
        self.heard.answers.setdefault(key, []).append(answer)


_TRANSPORT_ERRORS = (mcp_types.CONNECTION_CLOSED, mcp_types.REQUEST_TIMEOUT)
"""Error codes that say nothing about the tool and are not recorded."""


def open_remote_transport(
    spec: ServerSpec, task: str, violation: ProtocolViolation
) -> tuple[AbstractAsyncContextManager[TransportStreams], Recorder | None]:
    """(streams of a remote server, its recorder if there is one): live, recorded or replayed, without secret values."""
    redaction = redaction_for(spec)
    if spec.cassette is not None and not spec.recording:
        return redact_transport(replay_transport(spec, task, violation), redaction, violation.share), None
    live = redact_transport(remote_transport(spec, violation), redaction, violation.share)
    if spec.cassette is None:
        return live, None
    recorder = Recorder(spec, task)
    return recorder.record(live), recorder
