"""An HTTP server in the harness's event loop, and what it refuses before it has read it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import uvicorn
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY_BYTES = 16_000_000
"""Size of a request; a larger one is refused."""
MAX_HELD_BYTES = 64_000_000
"""Bytes of all requests of one agent that are under way; one that needs more is refused."""
REFUSAL_HEADERS: Mapping[int, Mapping[str, str]] = {
    401: {"www-authenticate": "Bearer"},
    413: {"connection": "close"},  # the rest of the request is not waited for
}
"""Headers of a refusal, by its status."""
MAX_DISCARDED_BYTES = 200_000_000
"""Bytes of a request that are read and discarded after it was refused for its size.

Most clients read no answer before they have sent everything, and lose it if the connection is closed while they send.
"""
_DISCARD_S, _SILENCE_S = 10.0, 1.0
"""Seconds for which a refused request is read, and the longest silence of its client meanwhile."""
_GRACE_S = 1
"""Seconds that requests under way get when the server ends."""
_KEEP_ALIVE_S = 600
"""Seconds that a connection without a request is kept."""


class RequestRefused(Exception):
    """A request that gets an error instead of an answer."""

    def __init__(self, status: int, why: str, code: str = "invalid_request_error") -> None:
        """`status`: of HTTP. `code`: the kind of error, for programs."""
        super().__init__(why)
        self.status = status
        self.code = code


class HeldRequests:
    """The requests of one agent that are under way. They wait for a model or a tool, and could fill the memory."""

    def __init__(self) -> None:
        self.size = 0
        """Bytes of their bodies."""

    @contextlib.contextmanager
    def hold(self, receive: Receive) -> Iterator[Receive]:
        """A `receive` for one request, which is under way until the block ends. It raises RequestRefused."""
        held = 0

        async def receive_and_count() -> Message:
            nonlocal held
            message = await receive()
            size = len(message.get("body", b""))
            if self.size + size > MAX_HELD_BYTES:
                why = f"the requests under way of this agent have more than {MAX_HELD_BYTES} bytes: wait for answers"
                raise RequestRefused(429, why, "too_many_requests")
            held += size
            self.size += size
            return message

        try:
            yield receive_and_count
        finally:
            self.size -= held


@contextlib.asynccontextmanager
async def serve_application(application: Any, sockets: list[socket.socket]) -> AsyncIterator[None]:
    """Serve the ASGI application on bound sockets until the context is left.

    Answers are sent at once: one in two pieces would else wait 40 ms for the client's acknowledgement of the first.
    """
    config = uvicorn.Config(
        _LingeringApplication(application),
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_GRACE_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
        server_header=False,
    )
    for each in sockets:
        if each.family != socket.AF_UNIX:  # accepted sockets inherit it, and asyncio does not set it on these
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    server = _Server(config)
    serving = asyncio.create_task(server.serve(sockets))
    try:
        ready = asyncio.create_task(server.ready.wait())
        await asyncio.wait([ready, serving], return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        if serving.done():
            serving.result()  # raises the reason
        yield
    finally:
        server.should_exit = True
        await serving


class _LingeringApplication:
    """The application, which reads and discards the rest of a request that it has refused for its size."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = ended = False

        async def receive_and_note() -> Message:
            nonlocal ended
            message = await receive()
            ended = not message.get("more_body")
            return message

        async def send_and_linger(message: Message) -> None:
            nonlocal refused
            if message["type"] == "http.response.start":
                refused = message["status"] == 413
            if not refused or message["type"] != "http.response.body" or message.get("more_body"):
                await send(message)
                return
            await send({**message, "more_body": True})  # the whole answer; what follows only ends it
            if not ended:
                await _discard_body(receive)
            await send({"type": "http.response.body"})

        await self._application(scope, receive_and_note, send_and_linger)


async def _discard_body(receive: Receive) -> None:
    """Read the rest of a request within the limits above."""
    size = 0
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DISCARD_S):
            while size < MAX_DISCARDED_BYTES:
                message = await asyncio.wait_for(receive(), _SILENCE_S)
                size += len(message.get("body", b""))
                if not message.get("more_body"):
                    return


class _Server(uvicorn.Server):
    """Server that leaves signals to the harness."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def check_size(headers: Any) -> None:
    """Raise RequestRefused for a body whose announced size is too large, before it is read."""
    announced = headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > MAX_BODY_BYTES:
        raise _too_large()


async def read_body(request: Request) -> bytes:
    """The body. Raises RequestRefused as soon as it is too large, or if it breaks off."""
    check_size(request.headers)
    body = bytearray()
    try:
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY_BYTES:
                raise _too_large()
    except ClientDisconnect as error:
        raise RequestRefused(400, "the request broke off") from error
    return bytes(body)


def replay_body(body: bytes, receive: Receive) -> Receive:
    """A `receive` that gives the body that was read, and then what comes after it."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return left.pop() if left else await receive()

    return receive_again


def _too_large() -> RequestRefused:
    return RequestRefused(413, f"the request has more than {MAX_BODY_BYTES} bytes", "request_too_large")
