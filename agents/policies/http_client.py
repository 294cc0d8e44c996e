"""An HTTP/1.1 client for hundreds of concurrent requests to one server, each on a connection of its own.

httpx looks through all connections of its pool at every request and costs, as does httpcore below it, more CPU than
anything else in a turn (benchmarks/http_client.py measures both). So this client parses answers with httptools (the
parser of Node.js) on plain asyncio connections, and takes the connection that was used last first.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
import ssl
import time
import urllib.request
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

import httptools
import httpx

from gymcp.errors import ConfigError
from gymcp.http_headers import check_headers

KEEP_ALIVE_S = 5.0
"""Seconds for which an idle connection is used again; servers close connections that are idle for longer."""
CONNECT_TIMEOUT_S = 10.0
"""Maximum seconds for opening a connection, its TLS handshake and a proxy's tunnel included."""
CLOSE_TIMEOUT_S = 5.0
"""Maximum seconds for closing all connections."""
PROBES = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 4, "TCP_USER_TIMEOUT": 70_000}
"""Options of a connection: seconds of silence before the kernel asks whether the peer is there, seconds between
questions, questions without an answer after which the connection is broken; milliseconds for which a sent byte may stay
unacknowledged. So a host that is gone is noticed after 70 s (``man 7 tcp``)."""
MAX_HEAD_BYTES = 256 * 1024
"""Maximum number of bytes of an answer beside its body."""


class NoAnswer(Exception):
    """No answer has come, or only a part of one."""


class LateAnswer(NoAnswer):
    """The server took the request and had not answered it when the time for that was over."""


class UnreadableAnswer(Exception):
    """The answer is longer than allowed, or has an unknown encoding that the request did not allow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    """Headers by name in lower case."""
    body: bytes
    arrivals: tuple[tuple[int, float], ...] = ()
    """(bytes of the body so far, seconds since the request was sent) for each piece of the body as it came; empty if
    the request did not ask for it, or the body was compressed."""


@dataclass(slots=True, kw_only=True)
class _Exchange:
    """One request's answer while it arrives."""

    answer: asyncio.Future[Response]
    parser: httptools.HttpResponseParser
    max_bytes: int
    tunnel: bool
    """True for a CONNECT request: the bytes behind the answer's head are not a body."""
    received: int = 0
    """Bytes of head and body so far."""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    timed: bool = False
    """True to note when each piece of the body came."""
    sent: float = field(default_factory=time.perf_counter)
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    until_close: bool = False
    """True if the body ends with the connection: its head names neither a length nor chunks."""


class HttpConnection(asyncio.Protocol):
    """One connection: a request, its answer, the next request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.is_open = False
        self.closed = asyncio.get_running_loop().create_future()
        self.last_used = 0.0
        """Time of the last complete answer, on the monotonic clock."""
        self._exchange: _Exchange | None = None
        """The last request's exchange; None before the first request."""

    def request(
        self, content: bytes, max_bytes: int, *, tunnel: bool = False, timed: bool = False
    ) -> asyncio.Future[Response]:
        """Send a request, head and body; the future's result is the answer. It may raise NoAnswer, UnreadableAnswer."""
        answer = asyncio.get_running_loop().create_future()
        parser = httptools.HttpResponseParser(self)
        self._exchange = _Exchange(answer=answer, parser=parser, max_bytes=max_bytes, tunnel=tunnel, timed=timed)
        if self.is_open:
            self.transport.write(content)
        else:
            self._fail(self._exchange, NoAnswer("the connection was closed"))
        return answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        exchange = self._exchange
        if exchange is None or exchange.answer.done():
            self.abort()  # data that no request asked for
            return
        exchange.received += len(data)
        if exchange.received > exchange.max_bytes + MAX_HEAD_BYTES:
            self._fail(exchange, UnreadableAnswer(_too_long(exchange.max_bytes)))
            return
        try:
            exchange.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(exchange, NoAnswer(f"what came is no HTTP: {error}"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._current().headers[name.decode("latin-1").lower()] = value.decode("latin-1").strip()

    def on_headers_complete(self) -> None:
        exchange = self._current()
        encoding = exchange.headers.get("transfer-encoding", "").lower()
        exchange.until_close = "content-length" not in exchange.headers and "chunked" not in encoding
        if exchange.tunnel and exchange.parser.get_status_code() < 300:
            self._finish(exchange)

    def on_body(self, body: bytes) -> None:
        exchange = self._current()
        exchange.body.extend(body)
        if exchange.timed:
            exchange.arrivals.append((len(exchange.body), time.perf_counter() - exchange.sent))

    def on_message_complete(self) -> None:
        exchange = self._current()
        if exchange.parser.get_status_code() < 200:
            exchange.headers = {}  # such as 100 Continue: the answer itself is still to come
        elif not exchange.tunnel:
            self._finish(exchange)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        if not self.closed.done():
            self.closed.set_result(None)
        exchange = self._exchange
        if exchange is None or exchange.answer.done():
            return
        if exc is None and exchange.until_close:
            self._finish(exchange)
        else:
            self._fail(exchange, NoAnswer("the connection was closed before the whole answer had come"))

    def abort(self) -> None:
        """Close the connection at once."""
        if self.is_open:
            self.is_open = False
            self.transport.abort()

    def _current(self) -> _Exchange:
        assert self._exchange is not None  # the parser that calls belongs to it
        return self._exchange

    def _finish(self, exchange: _Exchange) -> None:
        if exchange.answer.done():
            self.abort()  # a second answer to one request
            return
        status = exchange.parser.get_status_code()
        exchange.answer.set_result(
            Response(
                status=status,
                headers=exchange.headers,
                body=bytes(exchange.body),
                arrivals=tuple(exchange.arrivals),
            )
        )
        self.last_used = time.monotonic()
        if not (exchange.parser.should_keep_alive() or exchange.tunnel):
            self.abort()

    def _fail(self, exchange: _Exchange, error: Exception) -> None:
        if not exchange.answer.done():
            exchange.answer.set_exception(error)
        self.abort()


class HttpClient:
    """A client for one server. Made by `open_http_client`."""

    def __init__(self, root: str, headers: Mapping[str, str], proxy: httpx.URL | None) -> None:
        self._url = httpx.URL(root)
        self._proxy = proxy
        self._tls = self._url.scheme == "https"
        self._context: ssl.SSLContext | None = None
        if self._tls or (proxy and proxy.scheme == "https"):
            self._context = httpx.create_ssl_context()  # takes tens of milliseconds: once for all connections
        # a proxy needs the whole address, unless it only forwards the bytes of a TLS connection
        forwarded = proxy is not None and not self._tls
        path, host = self._url.raw_path.decode("ascii"), self._url.netloc.decode("ascii")
        self._root = (f"{self._url.scheme}://{host}{path}" if forwarded else path).rstrip("/")
        own_headers = {"host": host, "accept-encoding": "identity", **headers}
        self._headers = own_headers | (_proxy_authorization(proxy) if proxy and forwarded else {})
        self._connections: set[HttpConnection] = set()
        self._idle: list[HttpConnection] = []

    async def request(
        self,
        method: str,
        path: str,
        content: bytes = b"",
        *,
        max_bytes: int,
        timed: bool = False,
        timeout_s: float | None = None,
    ) -> Response:
        """Send a request and wait for the whole answer. Raises NoAnswer, LateAnswer, UnreadableAnswer.

        `timed`: note when each piece of the answer's body comes. `timeout_s`: maximum seconds from sending the request
        to the last byte of the answer, on a connection that is open; None for no limit.
        """
        head = _head(method, self._root + path, {**self._headers, "content-length": str(len(content))})
        connection = self._take_idle() or await self._connect()
        try:
            async with asyncio.timeout(timeout_s):
                answer = await connection.request(head + content, max_bytes, timed=timed)
        except TimeoutError as error:
            connection.abort()
            raise LateAnswer(f"no answer within {timeout_s:g} s") from error
        except BaseException:
            connection.abort()
            raise
        finally:
            if connection.is_open:
                self._idle.append(connection)
            else:
                self._connections.discard(connection)
        return _decompress(answer, max_bytes)

    def _take_idle(self) -> HttpConnection | None:
        """The open connection that was used last; those that have been idle for too long are closed."""
        oldest = time.monotonic() - KEEP_ALIVE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and connection.last_used >= oldest:
                return connection
            connection.abort()
            self._connections.discard(connection)
        return None

    async def _connect(self) -> HttpConnection:
        """A new connection, ready for a request. Raises NoAnswer."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await self._open_connection()
        except TimeoutError as error:
            raise NoAnswer(f"no connection within {CONNECT_TIMEOUT_S:g} s") from error
        except ConnectionRefusedError as error:
            raise NoAnswer("the connection was refused: nothing listens at that address") from error
        except OSError as error:
            raise NoAnswer(str(error)) from error

    async def _open_connection(self) -> HttpConnection:
        loop = asyncio.get_running_loop()
        peer = self._proxy or self._url
        secure = peer.scheme == "https"
        _, connection = await loop.create_connection(
            HttpConnection, peer.host, peer.port or (443 if secure else 80), ssl=self._context if secure else None
        )
        self._connections.add(connection)
        _notice_lost_peers(connection.transport)
        if self._proxy and self._tls:
            try:
                await self._open_tunnel(connection, self._proxy)
            except BaseException:
                connection.abort()
                self._connections.discard(connection)
                raise
        return connection

    async def _open_tunnel(self, connection: HttpConnection, proxy: httpx.URL) -> None:
        """Make the proxy forward bytes to the server, and start TLS with the server. Raises NoAnswer."""
        assert self._context is not None
        host = self._url.raw_host.decode("ascii")
        target = f"{f'[{host}]' if ':' in host else host}:{self._url.port or 443}"
        head = _head("CONNECT", target, {"host": target, **_proxy_authorization(proxy)})
        answer = await connection.request(head, 0, tunnel=True)
        if answer.status >= 300:
            raise NoAnswer(f"the proxy {proxy.host} refuses a connection: status {answer.status}")
        loop = asyncio.get_running_loop()
        transport = await loop.start_tls(connection.transport, connection, self._context, server_hostname=host)
        if transport is None:
            raise NoAnswer("the connection was closed")
        connection.transport = transport

    async def close(self) -> None:
        """Close every connection, those in use as well."""
        connections, self._connections = self._connections, set()
        for connection in connections:
            connection.abort()
        if connections:
            await asyncio.wait([connection.closed for connection in connections], timeout=CLOSE_TIMEOUT_S)


def _notice_lost_peers(transport: asyncio.BaseTransport) -> None:
    """Have the connection break if its peer is gone without a word, because an answer may take hours otherwise."""
    connected = transport.get_extra_info("socket")
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in PROBES.items():
        if hasattr(socket, name):  # Linux has all of them
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _head(method: str, target: str, headers: Mapping[str, str]) -> bytes:
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, "", ""]).encode("ascii")


def _proxy_authorization(proxy: httpx.URL) -> dict[str, str]:
    if not proxy.username:
        return {}
    pair = f"{proxy.username}:{proxy.password}".encode()
    return {"proxy-authorization": f"Basic {base64.b64encode(pair).decode()}"}


def _decompress(answer: Response, max_bytes: int) -> Response:
    """The answer, decompressed if a gateway compressed it without being asked to. Raises UnreadableAnswer."""
    body = answer.body
    encoding = answer.headers.get("content-encoding", "identity").strip().lower()
    if encoding in ("gzip", "x-gzip", "deflate"):
        try:
            body = zlib.decompressobj(zlib.MAX_WBITS | 32).decompress(body, max_bytes + 1)
        except zlib.error as error:
            raise UnreadableAnswer(f"the answer cannot be read: {error}") from error
    elif encoding != "identity":
        raise UnreadableAnswer(f"the answer cannot be read: its encoding is {encoding!r}")
    if len(body) > max_bytes:
        raise UnreadableAnswer(_too_long(max_bytes))
    return answer if body is answer.body else Response(status=answer.status, headers=answer.headers, body=body)


def _too_long(max_bytes: int) -> str:
    return f"the answer is longer than {max_bytes} bytes"


def find_proxy(url: httpx.URL) -> httpx.URL | None:
    """The proxy that the environment names for this address; None if there is none, or for a loopback address."""
    if url.host in ("localhost", "127.0.0.1", "::1") or urllib.request.proxy_bypass(url.host):
        return None
    proxies = urllib.request.getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    return httpx.URL(address if "://" in address else f"http://{address}") if address else None


@contextlib.asynccontextmanager
async def open_http_client(root: str, headers: Mapping[str, str], *, proxied: bool = True) -> AsyncIterator[HttpClient]:
    """A client for the server at this address; its connections are closed on exit.

    `proxied`: use the environment's proxy, if it names one. Raises ConfigError for an address or a header that HTTP
    cannot carry.
    """
    try:
        url = httpx.URL(root)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise ConfigError(f"address {root!a}: {error}") from error
    check_headers(f"address {root}", headers)
    client = HttpClient(root, headers, find_proxy(url) if proxied else None)
    try:
        yield client
    finally:
        await client.close()
