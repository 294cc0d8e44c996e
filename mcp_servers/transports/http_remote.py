"""Servers that run elsewhere, reached by URL: nothing of them can be seen but what they answer.

The SDK's client speaks MCP over HTTP. Under it, `Guard` keeps every answer within bounds and never raises: an exception
would end the SDK's task group, and with it the episode as if it had been cancelled. What is wrong with HTTP itself, an
unreachable host, a status without a message of MCP, an answer that is none, loses the server (no score): unlike with a
server in the sandbox, nobody can tell what the agent's call had to do with it.

Only connecting is tried again: a request that may have been received is never sent twice. TLS is always verified;
proxies and .netrc of the environment are not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
import ssl
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import anyio
import httpx2
import mcp_types
from mcp.client.streamable_http import streamable_http_client

from gymcp.errors import ConfigError, EnvInfraError, ProtocolError
from gymcp.http_headers import check_headers
from gymcp.mcp_servers.redaction import Redaction, redaction_of, secrets_in
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.transports.cassette import read_tape
from gymcp.mcp_servers.transports.stdio import MANY_VALUES, MAX_VALUES, Violation, has_many_values, parsed
from gymcp.mcp_servers.variables import substitute_variables

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

CONNECT_TIMEOUT_S = 10.0
CONNECT_RETRIES = 2
IDLE_TIMEOUT_S = 300.0
"""Between two pieces of an answer; a call has a bound of its own."""
GOODBYE_TIMEOUT_S = 2.0
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
_PIECE_S, _EVENT_S = 30e-6, 300e-6
"""What a piece of an answer takes of the loop's time, and an event of it."""
EXCERPT = 300
"""Characters of an answer that is told in an error."""
_LONGEST_VALUE = 16_384
"""Bytes read beyond an excerpt, so that none ends within a value that is to be kept out."""

# What a server says would be in its tracebacks; what matters of that is in our errors.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)


class Elsewhere:
    """In place of the process of a server that has none here."""

    pid = -1
    returncode = None

    @property
    def stdin(self) -> asyncio.StreamWriter:
        raise EnvInfraError("a server elsewhere has no standard input")

    @property
    def stdout(self) -> asyncio.StreamReader:
        raise EnvInfraError("a server elsewhere has no standard output")

    async def wait(self) -> int:
        """At once: its end cannot be seen."""
        return -1

    def stderr_tail(self) -> str:
        return ""

    async def drain_stderr(self) -> None:
        """At once: what it says is not heard."""

    def limit_hit(self) -> str | None:
        return None


def fault_of_url(spec: ServerSpec) -> str | None:
    """Why a server elsewhere cannot be used as its spec says, in words."""
    if spec.url is None:
        given = [name for name in ("headers", "cassette", "recording") if getattr(spec, name)]
        return f"{given[0]} without url: only a server elsewhere has them" if given else None
    if given := [name for name in ("argv", "image", "http", "mounts", "fork") if getattr(spec, name)]:
        return f"url with {given[0]}: a server is started here, or it runs elsewhere; have one"
    parts = urlsplit(spec.url)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        return f"url '{spec.url}': expected http(s)://HOST/PATH; secrets as headers={{'Authorization': '${{NAME}}'}}"
    if spec.state not in ("opaque", "stateless"):
        return f"url with state={spec.state!r}: of a server elsewhere nothing can be read; have opaque, stateless"
    if spec.recording and spec.cassette is None:
        return "recording without a cassette: which file?"
    if spec.state != "stateless" and spec.cassette is None:
        return (
            f"'{spec.url}' runs elsewhere, where no episode starts from a fresh state: declare it state='stateless', "
            "or give it cassette=Path(...) and record it with: gymcp eval ENV --cassette record"
        )
    return None


def is_live(spec: ServerSpec) -> bool:
    """True where calls go out to another machine."""
    return spec.url is not None and (spec.recording or spec.cassette is None)


def in_mode(servers: tuple[ServerSpec, ...], mode: str | None) -> tuple[ServerSpec, ...]:
    """The servers with their cassettes recorded or played; None: as they are. Raises ConfigError."""
    if mode is None:
        return servers
    if mode == "record":
        if not any(server.cassette for server in servers):
            raise ConfigError("--cassette record: no server has a cassette; give one: ServerSpec(cassette=Path(...))")
        return tuple(replace(server, recording=server.cassette is not None) for server in servers)
    if mode != "replay":
        raise ConfigError(f"--cassette {mode}: have record, replay")
    if live := [server.name for server in servers if server.url is not None and server.cassette is None]:
        raise ConfigError(f"--cassette replay: server '{live[0]}' has no cassette and would be called")
    return tuple(replace(server, recording=False) for server in servers)


def check_remotes(servers: Iterable[ServerSpec], sandbox: Sandbox) -> None:
    """Said before an episode fails for it.

    Raises ConfigError for a variable that is not set, a cassette that cannot be played, and a server with a port where
    there is no loopback for it.
    """
    for server in servers:
        if server.http is not None and not sandbox.confined:
            raise ConfigError(
                f"server '{server.name}': speaks HTTP, which needs a loopback of its own; --sandbox {sandbox.name} has "
                "only the host's; use bwrap or docker"
            )
        if is_live(server):
            filled_url(server)
        elif server.cassette is not None:
            read_tape(server.cassette)


def filled_url(spec: ServerSpec) -> tuple[str, dict[str, str]]:
    """URL and headers with their variables filled in. Raises ConfigError for one that is not set or cannot be sent."""
    try:
        url = substitute_variables(spec.url or "", os.environ)
        headers = {name: substitute_variables(value, os.environ) for name, value in spec.headers.items()}
    except KeyError as error:
        raise ConfigError(
            f"server '{spec.name}': environment variable {error} is not set; its url or headers refer to it"
        ) from error
    check_headers(f"server '{spec.name}'", headers)
    try:
        httpx2.URL(url)
    except (httpx2.InvalidURL, UnicodeError):  # whose words would show what the variables stand for
        raise ConfigError(f"server '{spec.name}': url '{spec.url}': filled in, it is none that can be asked") from None
    return url, headers


def redaction_for(spec: ServerSpec) -> Redaction | None:
    """What the server must not be heard to say; None if there is nothing. Raises ConfigError for too short a secret."""
    if not spec.secrets and spec.url is None:
        return None
    texts = [("url", spec.url or ""), *spec.headers.items()]
    return redaction_of({**spec.secrets, **secrets_in(f"server '{spec.name}'", texts)})


@contextlib.asynccontextmanager
async def remote_transport(spec: ServerSpec, violation: Violation) -> AsyncIterator[TransportStreams]:
    """The SDK's streams to the server, each session with connections of its own. Raises ConfigError."""
    url, headers = filled_url(spec)
    guard = Guard(spec.limits.line_bytes, violation, redaction_for(spec))
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=IDLE_TIMEOUT_S)
    try:
        async with (
            httpx2.AsyncClient(transport=guard, headers=headers, timeout=timeout, trust_env=False) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=spec.limits.line_bytes) as streams,
        ):
            yield streams
    except BaseExceptionGroup as failed:
        # An answer that comes while the session is closing has nobody to take it.
        if failed.split((anyio.BrokenResourceError, anyio.ClosedResourceError))[1] is not None:
            raise


@functools.cache
def _tls() -> ssl.SSLContext:
    """Made once: reading the certificates takes 30 ms."""
    return ssl.create_default_context()


class Guard(httpx2.AsyncBaseTransport):
    """Answers every request within bounds; what is wrong with an answer becomes `violation`, and is answered for it."""

    def __init__(self, max_bytes: int, violation: Violation, redaction: Redaction | None = None) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=_tls(), trust_env=False, retries=CONNECT_RETRIES)
        self._max_bytes = max_bytes
        self._violation = violation
        self.share = violation.share
        self._redaction = redaction

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._violation.text is not None:
            return _answer(self._violation.text)
        self.share.grant()
        request.headers["accept-encoding"] = "identity"  # what is not compressed cannot grow
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S if request.method == "DELETE" else None):
                response = await self._bounded(await self._inner.handle_async_request(request))
        except (httpx2.TransportError, TimeoutError) as error:
            if request.method != "POST":  # the end of a session, or a stream of what the server says unasked
                return _answer(str(error))
            return self._lost(f"{request.url.host}: {type(error).__name__}: {error}", EnvInfraError)
        return self._judged(request, response) if request.method == "POST" else response

    async def _bounded(self, response: httpx2.Response) -> httpx2.Response:
        """All of it, up to the limit; of events, a stream that ends there. Raises TransportError."""
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._lost("its answer is compressed, which was not asked for", ProtocolError)
        in_events = response.status_code == 200 and _kind(response) == "text/event-stream"
        stream = _Bounded(response.stream, self, in_events=in_events)
        if in_events:
            response.stream = stream
            return response
        try:
            body = b"".join([piece async for piece in stream])
        finally:
            await response.aclose()
        return httpx2.Response(response.status_code, headers=response.headers, content=body)

    def _judged(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response, where it is one of MCP; else the reason why the server is lost."""
        status, kind = response.status_code, _kind(response)
        if response.is_redirect or status in (202, 204) or (status == 200 and kind == "text/event-stream"):
            return response
        body = response.content
        if kind == "application/json" and _is_message(body):
            return response
        if request.headers.get("mcp-method") == "server/discover" and 400 <= status < 500:
            return response  # an older server, which the SDK finds out by this
        if status == 200:
            return self._lost(f"its answer is no message of MCP ({kind}): {self._excerpt(body)}", ProtocolError)
        return self._lost(f"HTTP {status} {response.reason_phrase}: {self._excerpt(body)}", EnvInfraError)

    def _lost(self, why: str, error: type[EnvInfraError]) -> httpx2.Response:
        if self._violation.text is None:  # the first thing that went wrong is the reason for the others
            self._violation.text, self._violation.error = why, error
        return _answer(self._violation.text)

    def _excerpt(self, body: bytes) -> str:
        text = re.sub(r"\s+", " ", body[: EXCERPT + _LONGEST_VALUE].decode("utf-8", "replace")).strip()
        return (text if self._redaction is None else self._redaction.text(text))[:EXCERPT] or "(nothing)"

    def too_much(self, why: str) -> None:
        """Raises ReadError, once the reason is noted."""
        self._lost(f"an answer {why}", ProtocolError)
        raise httpx2.ReadError("too much")

    @property
    def max_bytes(self) -> int:
        return self._max_bytes


class _Bounded(httpx2.AsyncByteStream):
    """An answer up to the guard's limits: whole events as they come, or all of it at its end."""

    def __init__(self, inner: httpx2.AsyncByteStream, guard: Guard, *, in_events: bool) -> None:
        self._inner = inner
        self._guard = guard
        self._in_events = in_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        share, size, kept = self._guard.share, 0, bytearray()
        async for piece in self._inner:
            size += len(piece)
            if size > self._guard.max_bytes:
                self._guard.too_much(f"of more than {self._guard.max_bytes} bytes")
            start = max(0, len(kept) - 3)
            kept += piece
            end = max(kept.rfind(mark, start) + len(mark) for mark in _EVENT_ENDS)
            share.charge(_PIECE_S)
            if self._in_events and end >= start + 2:
                events = bytes(kept[:end])
                del kept[:end]
                if any(map(has_many_values, _spoken(events))):
                    self._guard.too_much(f"that {MANY_VALUES}")
                share.charge(events.count(b"data:") * _EVENT_S)
                yield events
            if wait_s := share.owed_s():
                await asyncio.sleep(wait_s)
        if has_many_values(rest := bytes(kept)):
            self._guard.too_much(f"that {MANY_VALUES}")
        if rest:
            yield rest

    async def aclose(self) -> None:
        await self._inner.aclose()


def _spoken(events: bytes) -> list[bytes]:
    """The data of each event: what stands between is not JSON, and no quote of it counts."""
    if len(events) <= MAX_VALUES:
        return []
    whole = events.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
    return [b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")) for event in whole]


def _answer(why: str) -> httpx2.Response:
    error = {"code": mcp_types.CONNECTION_CLOSED, "message": why}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})


def _kind(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _is_message(body: bytes) -> bool:
    try:
        parsed(body)
    except ValueError:
        return False
    return True
