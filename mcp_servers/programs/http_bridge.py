"""Runs inside the sandbox, between standard streams and a server that speaks only streamable HTTP.

It starts the server, waits until its port on the sandbox's own loopback is open, and then carries messages: a line in
is ``{"headers": {...}, "message": {...}}``, posted as it is; a line out is a message of the server, whether it came as
JSON, as an event of a POST's stream, or of the stream that a GET opens. Both wires go through: sessions by
``Mcp-Session-Id``, and requests that stand alone (2026-07-28), which is told by the headers that the client wrote.
A ping without headers is not carried: the bridge answers it, since it runs only once the port is open.

What ends the server ends the bridge, with the server's status. What no server may do ends both, after a last line:
an exclamation mark, and as JSON which failure it is and why.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

BROKE_PROTOCOL, NEVER_OPENED, LOST = "broke protocol", "never opened", "lost"
"""Which failure it is, on the last line."""
LAST_LINE = "!"
STATUS = 70
"""Of the bridge's exit, where it is not the server's."""
INVALID_REQUEST, INTERNAL_ERROR = -32600, -32603
MODERN = "2026-07-28"
"""The oldest version without sessions: there, closing a request's connection is what cancels it."""
MAX_AT_ONCE = 32
MAX_RESUMES = 5
"""Of one stream, which a server may close and have asked for again."""
RETRY_S, MAX_RETRY_S = 1.0, 5.0
LAST_MOMENT_S = 1.0
"""For answers that are under way when the server ends, and for its end to be seen when a connection breaks."""
POLL_S = 0.02
EXCERPT = 300
PIECE = 65536

Message = dict[str, Any]


class Breach(Exception):
    """The server said what no MCP server may."""


def events(pieces: Iterable[bytes], limit: int) -> Iterator[dict[str, str]]:
    """The events of a stream, each with its fields; raises Breach for one of more than `limit` bytes."""
    fields: dict[str, list[str]] = {}
    size = 0
    for line in _lines(pieces, limit):
        size += len(line)
        if size > limit:
            raise Breach(f"an event of more than {limit} bytes")
        if line:
            name, _, value = line.decode("utf-8", "replace").partition(":")
            fields.setdefault(name, []).append(value[1:] if value.startswith(" ") else value)
            continue
        if fields:
            yield {name: "\n".join(values) if name == "data" else values[-1] for name, values in fields.items()}
        fields, size = {}, 0


def _lines(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Without their ends: carriage return, line feed, or both."""
    rest = bytearray()
    after_return = False
    for piece in pieces:
        rest_of_end = after_return and piece.startswith(b"\n")
        after_return = piece.endswith(b"\r")
        *whole, last = re.split(rb"\r\n|\n|\r", piece[rest_of_end:])
        for line in whole:
            yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > limit:
            raise Breach(f"a line of more than {limit} bytes")


class Bridge:
    def __init__(self, address: tuple[str, int], path: str, max_bytes: int, server: subprocess.Popen[bytes]) -> None:
        self._address, self._path, self._max_bytes = address, path, max_bytes
        self._server = server
        self._out = threading.Lock()
        self._session: str | None = None
        self._version: str | None = None
        self._under_way: dict[Any, _Post] = {}
        self._threads: list[threading.Thread] = []
        self._gone = threading.Event()

    def run(self) -> None:
        """Until standard input ends, or the server."""
        threading.Thread(target=self._watch, daemon=True).start()
        for line in sys.stdin.buffer:
            try:
                asked = json.loads(line)
                if asked.get("method") == "ping":
                    self._write({"jsonrpc": "2.0", "id": asked["id"], "result": {}})
                    continue
                headers, message = dict(asked["headers"]), dict(asked["message"])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                why = f"a line to the bridge is neither a message with headers nor a ping: {error!r}"
                self._write({"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": why}})
                continue
            self._take(headers, message)

    def _watch(self) -> None:
        status = self._server.wait()
        self._gone.set()
        until = time.monotonic() + LAST_MOMENT_S
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))
        os._exit(status if status >= 0 else 128 - status)

    def _take(self, headers: dict[str, str], message: Message) -> None:
        """One message of the client. The session's first notification is sent before what follows it."""
        method = message.get("method")
        if method == "initialize":
            self._version = None
        self._version = headers.get("mcp-protocol-version", self._version)
        post = _Post(message, {**headers, **self._own_headers()})
        if method == "notifications/cancelled":
            cancelled = self._under_way.get((message.get("params") or {}).get("requestId"))
            if (self._version or "") < MODERN:
                self._in_thread(self._post, post)
            if cancelled is not None:
                cancelled.close()
        elif method == "notifications/initialized":
            self._post(post)
            self._in_thread(self._listen, counted=False)
        elif post.id is None:
            self._in_thread(self._post, post)
        elif len(self._under_way) >= MAX_AT_ONCE:
            self._refuse(post, f"more than {MAX_AT_ONCE} requests at a time")
        else:
            self._under_way[post.id] = post
            self._in_thread(self._post, post)

    def _own_headers(self) -> dict[str, str]:
        own = {"content-type": "application/json", "accept": "application/json, text/event-stream"}
        if self._session is not None:
            own["mcp-session-id"] = self._session
        if self._version is not None:
            own["mcp-protocol-version"] = self._version
        return own

    def _in_thread(self, work: Any, *arguments: Any, counted: bool = True) -> None:
        thread = threading.Thread(target=self._guarded, args=(work, *arguments), daemon=True)
        thread.start()  # before the watch can see it: one that has not begun cannot be joined
        self._threads = [other for other in self._threads if other.is_alive()] + [thread] * counted

    def _guarded(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # the boundary: a thread that ends unseen would leave its request without an answer
            with self._out:
                end(BROKE_PROTOCOL, str(error) if isinstance(error, Breach) else repr(error))

    # ------------------------------------------------------------------------------------------------------ requests

    def _post(self, post: _Post) -> None:
        try:
            self._exchange(post)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a session id that is no header
            # The server may be about to be seen dead, which says more than its connection does.
            if not post.closed and not self._gone.wait(LAST_MOMENT_S):
                self._refuse(post, f"{type(error).__name__}: {error}")
        except Breach as breach:
            raise Breach(f"{post.about}: {breach}") from None
        finally:
            self._under_way.pop(post.id, None)
            post.close()

    def _exchange(self, post: _Post) -> None:
        response = post.send("POST", self._address, self._path, json.dumps(post.message).encode())
        if post.message.get("method") == "initialize":
            self._session = response.getheader("Mcp-Session-Id")
        if response.status >= 400:
            self._refused(post, response)
        elif post.id is None or response.status in (202, 204):
            self._refuse(post, f"HTTP {response.status} without an answer")
        elif response.status >= 300:
            where = response.getheader("Location")
            raise Breach(f"HTTP {response.status} to {where!r}: give the path that it asks for")
        elif _kind(response) == "application/json":
            said = _parsed(_body(response, self._max_bytes))
            answers = [self._emit(part, post) for part in (said if isinstance(said, list) else [said])]
            if not any(answers):
                self._refuse(post, "the answer is to another request")
        elif _kind(response) == "text/event-stream":
            self._follow(post, response)
        else:
            raise Breach(f"the answer is of the type {_kind(response)!r}, not JSON or a stream of events")

    def _refused(self, post: _Post, response: http.client.HTTPResponse) -> None:
        """A failure by HTTP: the server's own error where its body is one, else one of the status."""
        body = _body(response, self._max_bytes)
        if response.status == 404 and self._session is not None and (self._version or "") < MODERN:
            with self._out:
                end(LOST, "the server has forgotten its session (HTTP 404)")
        with contextlib.suppress(Breach):
            said = _parsed(body)
            if isinstance(said, dict) and isinstance(said.get("error"), dict):
                if post.id is not None:
                    self._write({"jsonrpc": "2.0", "id": post.id, "error": said["error"]})
                return
        excerpt = body[:EXCERPT].decode("utf-8", "replace").strip()
        self._refuse(post, f"HTTP {response.status} {response.reason}{': ' + excerpt if excerpt else ''}")

    def _follow(self, post: _Post, response: http.client.HTTPResponse) -> None:
        """Events until the answer; a stream that ends before it is asked for again where the server numbers events."""
        stream = _Stream(response)
        for _ in range(MAX_RESUMES + 1):
            for data in stream.messages(self._max_bytes):
                if self._emit(_parsed(data.encode()), post):
                    return
            if stream.last_id is None or post.closed:
                break
            time.sleep(stream.retry_s)
            stream.response = post.again(self._address, self._path, stream.last_id)
            if stream.response.status != 200:
                break
        if not self._gone.wait(LAST_MOMENT_S):
            self._refuse(post, "its stream ended without an answer")

    def _listen(self) -> None:
        """What the server sends unasked, on a stream of its own; none is no fault."""
        stream = _Stream()
        for _ in range(MAX_RESUMES):
            with contextlib.suppress(OSError, http.client.HTTPException):
                post = _Post({}, self._own_headers())
                stream.response = post.again(self._address, self._path, stream.last_id)
                if stream.response.status != 200 or _kind(stream.response) != "text/event-stream":
                    return
                for data in stream.messages(self._max_bytes):
                    self._emit(_parsed(data.encode()), None)
            time.sleep(stream.retry_s)

    # -------------------------------------------------------------------------------------------------------- output

    def _emit(self, said: Any, post: _Post | None) -> bool:
        """Passes a message on; True where it answers the request."""
        if not isinstance(said, dict):
            raise Breach("a message is not a JSON object")
        self._write(said)
        return post is not None and "method" not in said and said.get("id") == post.id

    def _refuse(self, post: _Post, why: str) -> None:
        if post.id is not None and not post.closed:
            self._write({"jsonrpc": "2.0", "id": post.id, "error": {"code": INTERNAL_ERROR, "message": why}})

    def _write(self, message: Message) -> None:
        try:
            line = json.dumps(message)
        except RecursionError:
            raise Breach("a message is nested too deep") from None
        with self._out:
            print_line(line)


class _Post:
    """One message on its way, with the connection that it is on."""

    def __init__(self, message: Message, headers: dict[str, str]) -> None:
        self.message = message
        self.id = message.get("id") if "method" in message else None
        self.about = str(message.get("method", "an answer"))
        self.closed = False
        self._headers = {**headers, "connection": "close"}
        self._socket: socket.socket | None = None

    def send(self, verb: str, address: tuple[str, int], path: str, body: bytes | None) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(*address)
        connection.connect()
        self._socket = connection.sock  # http.client hands it over to the response
        if self.closed:
            self.close()
        connection.request(verb, path, body, self._headers)
        return connection.getresponse()

    def again(self, address: tuple[str, int], path: str, last_id: str | None) -> http.client.HTTPResponse:
        """The stream, from the event after `last_id`."""
        self._headers = {**self._headers, "accept": "text/event-stream"}
        if last_id is not None:
            self._headers["last-event-id"] = last_id
        return self.send("GET", address, path, None)

    def close(self) -> None:
        """Ends the exchange, in whichever thread it is."""
        self.closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class _Stream:
    """Events, and where to go on when they end."""

    def __init__(self, response: http.client.HTTPResponse | None = None) -> None:
        self.response = response
        self.last_id: str | None = None
        self.retry_s = RETRY_S

    def messages(self, limit: int) -> Iterator[str]:
        assert self.response is not None
        with contextlib.suppress(OSError, http.client.HTTPException):  # a stream may end in any way
            for event in events(_pieces(self.response), limit):
                self.last_id = event.get("id") or self.last_id
                if event.get("retry", "").isdigit():
                    self.retry_s = min(int(event["retry"][:9]) / 1000, MAX_RETRY_S)
                if event.get("data") and event.get("event", "message") == "message":
                    yield event["data"]


def _pieces(response: http.client.HTTPResponse) -> Iterator[bytes]:
    while piece := response.read1(PIECE):
        yield piece


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    found = bytearray()
    for piece in _pieces(response):
        found += piece
        if len(found) > limit:
            raise Breach(f"an answer of more than {limit} bytes")
    return bytes(found)


def _kind(response: http.client.HTTPResponse) -> str:
    return (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise Breach("a message is nested too deep") from None
    except ValueError as error:
        raise Breach(f"a message is not JSON ({error}): {text[:EXCERPT]!r}") from None


def print_line(line: str) -> None:
    left = memoryview(line.encode() + b"\n")
    while left:
        left = left[os.write(1, left) :]


def end(failure: str, why: str) -> None:
    """Of bridge and server both."""
    print_line(LAST_LINE + json.dumps({"failure": failure, "why": why}))
    os._exit(STATUS)


def _wait_for_port(server: subprocess.Popen[bytes], port: int, deadline_s: float) -> tuple[str, int]:
    """The address that answers; ends the bridge where none does in time."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if (status := server.poll()) is not None:
            os._exit(status if status >= 0 else 128 - status)
        for host in ("127.0.0.1", "::1"):
            with contextlib.suppress(OSError):
                socket.create_connection((host, port), timeout=POLL_S).close()
                return host, port
        time.sleep(POLL_S)
    end(NEVER_OPENED, f"the server did not open port {port} within {deadline_s:g} s")
    raise AssertionError("unreachable: the process has ended")


def main() -> None:
    options = json.loads(sys.argv[1])
    argv = sys.argv[2:]
    if argv[0] == "python3":
        argv[0] = sys.executable
    try:
        # what it prints is for people: only the bridge writes to standard output
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2)
    except OSError as error:
        end(LOST, f"the server cannot be started: {argv[0]}: {error.strerror}")
        return
    address = _wait_for_port(server, options["port"], options["deadline_s"])
    Bridge(address, options["path"], options["max_bytes"], server).run()
