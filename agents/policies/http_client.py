"""Hundreds of requests to one server at a time, each on a connection of its own.

httpx looks through all connections of a pool at every request and costs, as does httpcore below it, more than anything
else in a turn. So an answer is parsed by httptools (the parser of node), on plain asyncio connections, of which the
last one used is the next one used.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass

import httptools
import httpx

from gymcp.errors import ConfigError
from gymcp.http_headers import check_headers

KEPT_ALIVE_S = 5.0
"""Without a request; servers close what waits longer."""
CONNECT_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 5.0
MOST_HEAD_BYTES = 256 * 1024
"""Of what comes beside an answer's body."""


class Broken(Exception):
    """There is no answer, or not the whole of one."""


class Unreadable(Exception):
    """An answer of more bytes than are read, or in an encoding that was not asked for and is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    status: int
    headers: Mapping[str, str]
    """By names in small letters."""
    body: bytes


class Line(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.is_open = False
        self.closed = asyncio.get_running_loop().create_future()
        self.used = 0.0
        """When the last answer had come, on the monotonic clock."""
        self._answer: asyncio.Future[Response] | None = None
        """None while nothing is asked."""

    def ask(self, request: bytes, most_bytes: int, *, tunnel: bool = False) -> asyncio.Future[Response]:
        """Its result is the answer; Broken, Unreadable. `tunnel`: what follows the answer's head is no body."""
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = httptools.HttpResponseParser(self)
        self._most_bytes = most_bytes
        self._received = 0
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._tunnel = tunnel
        self._to_the_end = False
        if self.is_open:
            self.transport.write(request)
        else:
            self._fail(Broken("the connection was closed"))
        return self._answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if self._answer is None or self._answer.done():
            self.abort()  # nobody has asked for this
            return
        self._received += len(data)
        if self._received > self._most_bytes + MOST_HEAD_BYTES:
            self._fail(Unreadable(_too_long(self._most_bytes)))
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(Broken(f"what came is no HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        coded = self._headers.get("transfer-encoding", "").lower()
        self._to_the_end = "content-length" not in self._headers and "chunked" not in coded
        if self._tunnel and self._parser.get_status_code() < 300:
            self._end()

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._headers = {}  # such as 100: the answer itself is still to come
        elif not self._tunnel:
            self._end()

    def _end(self) -> None:
        answer = self._answer
        if answer is None or answer.done():
            self.abort()  # more than one answer
            return
        status = self._parser.get_status_code()
        answer.set_result(Response(status=status, headers=self._headers, body=bytes(self._body)))
        self.used = time.monotonic()
        if not (self._parser.should_keep_alive() or self._tunnel):
            self.abort()

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.closed.done():
            self.closed.set_result(None)
        if self._answer is None or self._answer.done():
            return
        if exc is None and self._to_the_end:
            self._end()
        else:
            self._fail(Broken("the connection was closed before the whole answer had come"))

    def abort(self) -> None:
        """No more of this connection."""
        if self.is_open:
            self.is_open = False
            self.transport.abort()


class Connections:
    """Made by `open_connections`."""

    def __init__(self, root: str, headers: Mapping[str, str], proxy: httpx.URL | None) -> None:
        self._url = httpx.URL(root)
        self._proxy = proxy
        self._tls = self._url.scheme == "https"
        self._context: ssl.SSLContext | None = None
        if self._tls or (proxy and proxy.scheme == "https"):
            self._context = httpx.create_ssl_context()  # takes tens of milliseconds: once for all
        # a proxy is asked for the whole address, unless it passes on bytes that it cannot read
        spoken = proxy is not None and not self._tls
        path, place = self._url.raw_path.decode("ascii"), self._url.netloc.decode("ascii")
        self._root = (f"{self._url.scheme}://{place}{path}" if spoken else path).rstrip("/")
        named = {"host": place, "accept-encoding": "identity", **headers}
        self._headers = named | (_authorization(proxy) if proxy and spoken else {})
        self._lines: set[Line] = set()
        self._idle: list[Line] = []

    async def ask(self, method: str, path: str, content: bytes = b"", *, most_bytes: int) -> Response:
        """The whole answer. Raises Broken, Unreadable; bounded in time by who calls."""
        head = _head(method, self._root + path, {**self._headers, "content-length": str(len(content))})
        line = self._kept() or await self._connect()
        try:
            answer = await line.ask(head + content, most_bytes)
        except BaseException:
            line.abort()
            raise
        finally:
            if line.is_open:
                self._idle.append(line)
            else:
                self._lines.discard(line)
        return _decoded(answer, most_bytes)

    def _kept(self) -> Line | None:
        """A connection that has been used before and is still of use."""
        oldest = time.monotonic() - KEPT_ALIVE_S
        while self._idle:
            line = self._idle.pop()
            if line.is_open and line.used >= oldest:
                return line
            line.abort()
            self._lines.discard(line)
        return None

    async def _connect(self) -> Line:
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._connected()
        except TimeoutError as error:
            raise Broken(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except OSError as error:
            raise Broken(str(error)) from error

    async def _connected(self) -> Line:
        loop = asyncio.get_running_loop()
        to = self._proxy or self._url
        secure = to.scheme == "https"
        _, line = await loop.create_connection(
            Line, to.host, to.port or (443 if secure else 80), ssl=self._context if secure else None
        )
        self._lines.add(line)
        if self._proxy and self._tls:
            try:
                await self._tunnel(line, self._proxy)
            except BaseException:
                line.abort()
                self._lines.discard(line)
                raise
        return line

    async def _tunnel(self, line: Line, proxy: httpx.URL) -> None:
        assert self._context is not None
        host = self._url.raw_host.decode("ascii")
        there = f"{f'[{host}]' if ':' in host else host}:{self._url.port or 443}"
        head = _head("CONNECT", there, {"host": there, **_authorization(proxy)})
        answer = await line.ask(head, 0, tunnel=True)
        if answer.status >= 300:
            raise Broken(f"the proxy {proxy.host} refuses a connection: status {answer.status}")
        loop = asyncio.get_running_loop()
        secured = await loop.start_tls(line.transport, line, self._context, server_hostname=host)
        if secured is None:
            raise Broken("the connection was closed")
        line.transport = secured

    async def close(self) -> None:
        """Ends every connection, those in use as well."""
        lines, self._lines = self._lines, set()
        for line in lines:
            line.abort()
        if lines:
            await asyncio.wait([line.closed for line in lines], timeout=CLOSE_TIMEOUT_S)


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _authorization(proxy: httpx.URL) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{proxy.username}:{proxy.password}".encode()
    return {"proxy-authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _decoded(answer: Response, most_bytes: int) -> Response:
    """With what some gateways compress although nobody asked for it as it was. Raises Unreadable."""
    body = answer.body
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate"):
        try:
            body = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, most_bytes + 1)
        except zlib.error as error:
            raise Unreadable(f"the answer cannot be read: {error}") from error
    elif encoding != "identity":
        raise Unreadable(f"the answer cannot be read: its encoding is {encoding!r}")
    if len(body) > most_bytes:
        raise Unreadable(_too_long(most_bytes))
    return answer if body is answer.body else Response(status=answer.status, headers=answer.headers, body=body)


def _too_long(most_bytes: int) -> str:
    return f"the answer is longer than {most_bytes} bytes"


def proxy_of(url: httpx.URL) -> httpx.URL | None:
    """The proxy that the environment names for this address; None where there is none, or for a loopback."""
    if url.host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    found = proxies.get(url.scheme) or proxies.get("all")
    return httpx.URL(found if "://" in found else f"http://{found}") if found else None


@contextlib.asynccontextmanager
async def open_connections(
    root: str, headers: Mapping[str, str], *, proxied: bool = True
) -> AsyncIterator[Connections]:
    """To the server at this address; all are closed on the way out. `proxied`: through the environment's proxy.

    Raises ConfigError for an address or a header that HTTP cannot carry.
    """
    try:
        url = httpx.URL(root)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigError(f"address {root!a}: {error}") from error
    check_headers(f"address {root}", headers)
    connections = Connections(root, headers, proxy_of(url) if proxied else None)
    try:
        yield connections
    finally:
        await connections.close()
