"""Remote servers, reached by URL: nothing of them is visible except their answers.

The SDK's client speaks MCP over HTTP. Below it, `BoundedHttpTransport` keeps every answer within bounds and never
raises: an exception would end the SDK's task group, and with it the episode as if it had been cancelled. A failure of
HTTP itself loses the server, and the episode has no score: an unreachable host, a status without an MCP message, a
malformed answer. Unlike with a server in the sandbox, it cannot be known whether the agent's call has caused it.

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
from gymcp.mcp_servers.transports.cassette import read_cassette
from gymcp.mcp_servers.transports.messages import MANY_VALUES, MAX_VALUES, has_many_values, parse_message
from gymcp.mcp_servers.transports.violation import ProtocolViolation
from gymcp.mcp_servers.variables import substitute_variables

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams  # only a type

CONNECT_TIMEOUT_S = 10.0
CONNECT_RETRIES = 2
IDLE_TIMEOUT_S = 300.0
"""Seconds between two pieces of an answer. A call has a bound of its own."""
GOODBYE_TIMEOUT_S = 2.0
"""Seconds for the request that ends a session."""
_EVENT_ENDS = (b"\n\n", b"\r\r", b"\r\n\r\n")
_PIECE_S, _EVENT_S = 30e-6, 300e-6
"""Seconds of the loop's time that a piece of an answer takes, and an event of it."""
MAX_EXCERPT_CHARS = 300
"""Characters of an answer that an error quotes."""
_EXCERPT_MARGIN = 16_384
"""Bytes that are read beyond an excerpt, so that it does not end within a secret value."""

# Its tracebacks would hold the server's messages; our errors hold what is needed of them.
logging.getLogger("mcp.client.streamable_http").setLevel(logging.CRITICAL)


class RemoteProcess:
    """Stands for the process of a remote server, which has none on this machine."""

    pid = -1
    returncode = None

    @property
    def stdin(self) -> asyncio.StreamWriter:
        raise EnvInfraError("a server elsewhere has no standard input")

    @property
    def stdout(self) -> asyncio.StreamReader:
        raise EnvInfraError("a server elsewhere has no standard output")

    async def wait(self) -> int:
        """Return at once, because the end of a remote server cannot be seen."""
        return -1

    def stderr_tail(self) -> str:
        return ""

    async def drain_stderr(self) -> None:
        """Return at once, because the standard error of a remote server cannot be seen."""

    def exceeded_limit(self) -> str | None:
        return None


def fault_of_url(spec: ServerSpec) -> str | None:
    """Reason why a remote server cannot be used as its spec says; None if there is none."""
    if spec.url is None:
        fields = [name for name in ("headers", "cassette", "recording") if getattr(spec, name)]
        return f"{fields[0]} without url: only a server elsewhere has them" if fields else None
    if fields := [name for name in ("argv", "image", "http", "mounts", "fork") if getattr(spec, name)]:
        return f"url with {fields[0]}: a server is started here, or it runs elsewhere; have one"
    parts = urlsplit(spec.url)
    if parts.scheme not in ("http", "https") or not parts.netloc or "@" in parts.netloc:
        return f"url '{spec.url}': expected http(s)://HOST/PATH; secrets as headers={{'Authorization': '${{NAME}}'}}"
    if spec.shows_state:
        return f"url with state={spec.state!r}: of a server elsewhere nothing can be read; have opaque, stateless"
    if spec.recording and spec.cassette is None:
        return "recording without a cassette: which file?"
    if not spec.is_stateless and spec.cassette is None:
        return (
            f"'{spec.url}' runs elsewhere, where no episode starts from a fresh state: declare it state='stateless', "
            "or give it cassette=Path(...) and record it with: gymcp eval ENV --cassette record"
        )
    return None


def is_live(spec: ServerSpec) -> bool:
    """True if calls go out to another machine."""
    return spec.url is not None and (spec.recording or spec.cassette is None)


def select_cassette_mode(servers: tuple[ServerSpec, ...], mode: str | None) -> tuple[ServerSpec, ...]:
    """The servers with `mode` ``record`` or ``replay`` for their cassettes; None: unchanged. Raises ConfigError."""
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
    """Check before an episode what would make it fail.

    Raises ConfigError for a variable that is not set, a cassette that cannot be replayed, and a server with a port or
    with services in a sandbox that has no loopback of its own.
    """
    for server in servers:
        if server.http is not None and not sandbox.confined:
            raise ConfigError(
                f"server '{server.name}': speaks HTTP, which needs a loopback of its own; --sandbox {sandbox.name} has "
                "only the host's; use bwrap or docker"
            )
        if server.services and not sandbox.confined:
            raise ConfigError(
                f"server '{server.name}': has services, which need a loopback of its own; --sandbox {sandbox.name} has "
                "only the host's; use bwrap or docker"
            )
        if is_live(server):
            fill_in_url(server)
        elif server.cassette is not None:
            read_cassette(server.cassette)


def fill_in_url(spec: ServerSpec) -> tuple[str, dict[str, str]]:
    """URL and headers with their variables filled in.

    Raises ConfigError for a variable that is not set or has a value that cannot be sent.
    """
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
    except (httpx2.InvalidURL, UnicodeError):  # their messages would show the values of variables
        raise ConfigError(f"server '{spec.name}': url '{spec.url}': filled in, it is none that can be asked") from None
    return url, headers


def redaction_for(spec: ServerSpec) -> Redaction | None:
    """Redaction of the server's secret values; None if it has none. Raises ConfigError for a secret that is too short.

    Secret values are those of the variables in its environment, arguments, URL and headers.
    """
    if not spec.secrets and spec.url is None:
        return None
    texts = [("url", spec.url or ""), *spec.headers.items()]
    return redaction_of({**spec.secrets, **secrets_in(f"server '{spec.name}'", texts)})


@contextlib.asynccontextmanager
async def remote_transport(spec: ServerSpec, violation: ProtocolViolation) -> AsyncIterator[TransportStreams]:
    """The SDK's streams to the server. Each session has connections of its own. Raises ConfigError."""
    url, headers = fill_in_url(spec)
    bounded = BoundedHttpTransport(spec.limits.line_bytes, violation, redaction_for(spec))
    timeout = httpx2.Timeout(CONNECT_TIMEOUT_S, read=IDLE_TIMEOUT_S)
    try:
        async with (
            httpx2.AsyncClient(transport=bounded, headers=headers, timeout=timeout, trust_env=False) as client,
            streamable_http_client(url, http_client=client, max_sse_event_size=spec.limits.line_bytes) as streams,
        ):
            yield streams
    except BaseExceptionGroup as group:
        # Nothing reads an answer that comes while the session is closing.
        if group.split((anyio.BrokenResourceError, anyio.ClosedResourceError))[1] is not None:
            raise


@functools.cache
def _tls_context() -> ssl.SSLContext:
    """Made once, because reading the certificates takes 30 ms."""
    return ssl.create_default_context()


class BoundedHttpTransport(httpx2.AsyncBaseTransport):
    """Answers every request within bounds. A failure is recorded in `violation` and becomes an error response."""

    def __init__(self, max_bytes: int, violation: ProtocolViolation, redaction: Redaction | None = None) -> None:
        self._inner = httpx2.AsyncHTTPTransport(verify=_tls_context(), trust_env=False, retries=CONNECT_RETRIES)
        self._max_bytes = max_bytes
        self._violation = violation
        self.share = violation.share
        self._redaction = redaction

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if self._violation.text is not None:
            return _error_response(self._violation.text)
        self.share.grant()
        request.headers["accept-encoding"] = "identity"  # an uncompressed answer cannot grow
        try:
            async with asyncio.timeout(GOODBYE_TIMEOUT_S if request.method == "DELETE" else None):
                response = await self._limit(await self._inner.handle_async_request(request))
        except (httpx2.TransportError, TimeoutError) as error:
            if request.method != "POST":  # the end of a session, or a stream of unrequested messages
                return _error_response(str(error))
            return self._lose_server(f"{request.url.host}: {type(error).__name__}: {error}", EnvInfraError)
        return self._check(request, response) if request.method == "POST" else response

    async def _limit(self, response: httpx2.Response) -> httpx2.Response:
        """The complete response, or for events a stream of them, within the limits. Raises TransportError."""
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            return self._lose_server("its answer is compressed, which was not asked for", ProtocolError)
        in_events = response.status_code == 200 and _content_type(response) == "text/event-stream"
        stream = _BoundedStream(response.stream, self, in_events=in_events)
        if in_events:
            response.stream = stream
            return response
        try:
            body = b"".join([piece async for piece in stream])
        finally:
            await response.aclose()
        return httpx2.Response(response.status_code, headers=response.headers, content=body)

    def _check(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        """The response, if it is one of MCP; otherwise an error response, and the server is lost."""
        status, kind = response.status_code, _content_type(response)
        if response.is_redirect or status in (202, 204) or (status == 200 and kind == "text/event-stream"):
            return response
        body = response.content
        if kind == "application/json" and _is_message(body):
            return response
        if request.headers.get("mcp-method") == "server/discover" and 400 <= status < 500:
            return response  # an older server, which the SDK recognises by this
        if status == 200:
            kind_text = kind or "without a content type"
            return self._lose_server(
                f"its answer is no message of MCP ({kind_text}): {self._excerpt(body)}", ProtocolError
            )
        return self._lose_server(f"HTTP {status} {response.reason_phrase}: {self._excerpt(body)}", EnvInfraError)

    def _lose_server(self, why: str, error: type[EnvInfraError]) -> httpx2.Response:
        if self._violation.text is None:  # the first failure is the reason for the others
            self._violation.text, self._violation.error = why, error
        return _error_response(self._violation.text)

    def _excerpt(self, body: bytes) -> str:
        text = re.sub(r"\s+", " ", body[: MAX_EXCERPT_CHARS + _EXCERPT_MARGIN].decode("utf-8", "replace")).strip()
        return (text if self._redaction is None else self._redaction.text(text))[:MAX_EXCERPT_CHARS] or "(nothing)"

    def refuse_answer(self, why: str) -> None:
        """Record the reason, then raise ReadError."""
        self._lose_server(f"an answer {why}", ProtocolError)
        raise httpx2.ReadError("too much")

    @property
    def max_bytes(self) -> int:
        return self._max_bytes


class _BoundedStream(httpx2.AsyncByteStream):
    """An answer up to the limits of its transport: complete events as they come, or everything at the end."""

    def __init__(self, inner: httpx2.AsyncByteStream, transport: BoundedHttpTransport, *, in_events: bool) -> None:
        self._inner = inner
        self._transport = transport
        self._in_events = in_events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        share, size, buffer = self._transport.share, 0, bytearray()
        async for piece in self._inner:
            size += len(piece)
            if size > self._transport.max_bytes:
                self._transport.refuse_answer(f"of more than {self._transport.max_bytes} bytes")
            start = max(0, len(buffer) - 3)
            buffer += piece
            end = max(buffer.rfind(mark, start) + len(mark) for mark in _EVENT_ENDS)
            share.charge(_PIECE_S)
            if self._in_events and end >= start + 2:
                events = bytes(buffer[:end])
                del buffer[:end]
                if any(map(has_many_values, _event_data(events))):
                    self._transport.refuse_answer(f"that {MANY_VALUES}")
                share.charge(events.count(b"data:") * _EVENT_S)
                yield events
            if wait_s := share.owed_s():
                await asyncio.sleep(wait_s)
        if has_many_values(rest := bytes(buffer)):
            self._transport.refuse_answer(f"that {MANY_VALUES}")
        if rest:
            yield rest

    async def aclose(self) -> None:
        await self._inner.aclose()


def _event_data(events: bytes) -> list[bytes]:
    """Data of each event. The text between is not JSON, and its quotes must not be counted."""
    if len(events) <= MAX_VALUES:
        return []
    whole = events.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n")
    return [b"\n".join(line[5:] for line in event.split(b"\n") if line.startswith(b"data:")) for event in whole]


def _error_response(why: str) -> httpx2.Response:
    error = {"code": mcp_types.CONNECTION_CLOSED, "message": why}
    return httpx2.Response(502, json={"jsonrpc": "2.0", "id": None, "error": error})


def _content_type(response: httpx2.Response) -> str:
    return str(response.headers.get("content-type", "")).partition(";")[0].strip().lower()


def _is_message(body: bytes) -> bool:
    try:
        parse_message(body)
    except ValueError:
        return False
    return True
