"""Bridge inside the sandbox between standard streams and a server that speaks only streamable HTTP.

It starts the server, waits until the server's port on the sandbox's own loopback is open, and then forwards messages.
A line of standard input is ``{"headers": {...}, "message": {...}}``, posted unchanged. A line of standard output is a
message of the server, which came as JSON, as an event of a POST's stream, or as an event of the stream that a GET
opens. Both protocols pass through: sessions by ``Mcp-Session-Id``, and requests without session (2026-07-28); the
headers of the client decide which it is. The bridge itself answers a ping without headers, because it reads standard
input only once the port is open.

If the server ends, the bridge ends with the server's status. If the server breaks the protocol, does not open its port
or loses its session, both end after a last line: an exclamation mark, then the failure and its reason as JSON.
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
"""Names of the failures on the last line."""
FAILURE_MARK = "!"
EXIT_STATUS = 70
"""Exit status of the bridge if it does not end with the server's status."""
INVALID_REQUEST, INTERNAL_ERROR = -32600, -32603
MODERN = "2026-07-28"
"""Oldest protocol version without sessions; in it, the client cancels a request by closing its connection."""
MAX_CONCURRENT_REQUESTS = 32
MAX_RESUMES = 5
"""Most times that one stream is resumed: a server may close a stream and have the client ask for it again."""
RETRY_S, MAX_RETRY_S = 1.0, 5.0
GRACE_S = 1.0
"""Seconds for answers under way when the server ends, and for its end to be noticed after a connection breaks."""
POLL_S = 0.02
EXCERPT_BYTES = 300
PIECE_BYTES = 65536

Message = dict[str, Any]


class ProtocolBreach(Exception):
    """The server broke the MCP protocol."""


def events(pieces: Iterable[bytes], limit: int) -> Iterator[dict[str, str]]:
    """Events of a stream as fields. Raises ProtocolBreach for an event of more than `limit` bytes."""
    fields: dict[str, list[str]] = {}
    size = 0
    for line in _lines(pieces, limit):
        size += len(line)
        if size > limit:
            raise ProtocolBreach(f"an event of more than {limit} bytes")
        if line:
            name, _, value = line.decode("utf-8", "replace").partition(":")
            fields.setdefault(name, []).append(value[1:] if value.startswith(" ") else value)
            continue
        if fields:
            yield {name: "\n".join(values) if name == "data" else values[-1] for name, values in fields.items()}
        fields, size = {}, 0


def _lines(pieces: Iterable[bytes], limit: int) -> Iterator[bytes]:
    """Lines without their ends, which are carriage return, line feed, or both."""
    rest = bytearray()
    after_return = False
    for piece in pieces:
        starts_with_line_feed = after_return and piece.startswith(b"\n")
        after_return = piece.endswith(b"\r")
        *whole, last = re.split(rb"\r\n|\n|\r", piece[starts_with_line_feed:])
        for line in whole:
            yield bytes(rest) + line
            rest.clear()
        rest += last
        if len(rest) > limit:
            raise ProtocolBreach(f"a line of more than {limit} bytes")


class Bridge:
    """Forwards messages between standard streams and one server."""

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
        """Forward messages until standard input or the server ends."""
        threading.Thread(target=self._watch, daemon=True).start()
        for line in sys.stdin.buffer:
            try:
                request = json.loads(line)
                if request.get("method") == "ping":
                    self._write({"jsonrpc": "2.0", "id": request["id"], "result": {}})
                    continue
                headers, message = dict(request["headers"]), dict(request["message"])
            except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
                why = f"a line to the bridge is neither a message with headers nor a ping: {error!r}"
                self._write({"jsonrpc": "2.0", "id": None, "error": {"code": INVALID_REQUEST, "message": why}})
                continue
            self._handle(headers, message)

    def _watch(self) -> None:
        status = self._server.wait()
        self._gone.set()
        until = time.monotonic() + GRACE_S
        for thread in list(self._threads):
            thread.join(max(0.0, until - time.monotonic()))
        os._exit(status if status >= 0 else 128 - status)

    def _handle(self, headers: dict[str, str], message: Message) -> None:
        """Handle one message of the client. The session's first notification is sent before all later messages."""
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
        elif len(self._under_way) >= MAX_CONCURRENT_REQUESTS:
            self._send_error(post, f"more than {MAX_CONCURRENT_REQUESTS} requests at a time")
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
        thread = threading.Thread(target=self._guard, args=(work, *arguments), daemon=True)
        thread.start()  # before `_watch` can see the thread: a thread that has not begun cannot be joined
        self._threads = [other for other in self._threads if other.is_alive()] + [thread] * counted

    def _guard(self, work: Any, *arguments: Any) -> None:
        try:
            work(*arguments)
        except Exception as error:  # the boundary: a thread that ends silently would leave its request unanswered
            with self._out:
                abort(BROKE_PROTOCOL, str(error) if isinstance(error, ProtocolBreach) else repr(error))

    # ------------------------------------------------------------------------------------------------------ requests

    def _post(self, post: _Post) -> None:
        try:
            self._exchange(post)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: a session id that is no header
            # The server may have ended, which `_watch` reports better than this connection error.
            if not post.closed and not self._gone.wait(GRACE_S):
                self._send_error(post, f"{type(error).__name__}: {error}")
        except ProtocolBreach as breach:
            raise ProtocolBreach(f"{post.about}: {breach}") from None
        finally:
            self._under_way.pop(post.id, None)
            post.close()

    def _exchange(self, post: _Post) -> None:
        response = post.send("POST", self._address, self._path, json.dumps(post.message).encode())
        if post.message.get("method") == "initialize":
            self._session = response.getheader("Mcp-Session-Id")
        if response.status >= 400:
            self._report_http_error(post, response)
        elif post.id is None or response.status in (202, 204):
            self._send_error(post, f"HTTP {response.status} without an answer")
        elif response.status >= 300:
            location = response.getheader("Location")
            raise ProtocolBreach(f"HTTP {response.status} to {location!r}: give the path that it asks for")
        elif _content_type(response) == "application/json":
            parsed = _parse_json(_body(response, self._max_bytes))
            messages = parsed if isinstance(parsed, list) else [parsed]
            answers = [self._forward(message, post) for message in messages]
            if not any(answers):
                self._send_error(post, "the answer is to another request")
        elif _content_type(response) == "text/event-stream":
            self._follow(post, response)
        else:
            raise ProtocolBreach(
                f"the answer is of the type {_content_type(response)!r}, not JSON or a stream of events"
            )

    def _report_http_error(self, post: _Post, response: http.client.HTTPResponse) -> None:
        """Answer with the server's own error if the body of an HTTP failure is one, else with the HTTP status."""
        body = _body(response, self._max_bytes)
        if response.status == 404 and self._session is not None and (self._version or "") < MODERN:
            with self._out:
                abort(LOST, "the server has forgotten its session (HTTP 404)")
        with contextlib.suppress(ProtocolBreach):
            answer = _parse_json(body)
            if isinstance(answer, dict) and isinstance(answer.get("error"), dict):
                if post.id is not None:
                    self._write({"jsonrpc": "2.0", "id": post.id, "error": answer["error"]})
                return
        excerpt = body[:EXCERPT_BYTES].decode("utf-8", "replace").strip()
        self._send_error(post, f"HTTP {response.status} {response.reason}{': ' + excerpt if excerpt else ''}")

    def _follow(self, post: _Post, response: http.client.HTTPResponse) -> None:
        """Forward events until the answer; resume a stream that ends before it if the server numbers its events."""
        stream = _Stream(response)
        for _ in range(MAX_RESUMES + 1):
            for data in stream.messages(self._max_bytes):
                if self._forward(_parse_json(data.encode()), post):
                    return
            if stream.last_id is None or post.closed:
                break
            time.sleep(stream.retry_s)
            stream.response = post.reopen(self._address, self._path, stream.last_id)
            if stream.response.status != 200:
                break
        if not self._gone.wait(GRACE_S):
            self._send_error(post, "its stream ended without an answer")

    def _listen(self) -> None:
        """Forward messages that the server sends without a request, on a stream that a server need not have."""
        stream = _Stream()
        for _ in range(MAX_RESUMES):
            with contextlib.suppress(OSError, http.client.HTTPException):
                post = _Post({}, self._own_headers())
                stream.response = post.reopen(self._address, self._path, stream.last_id)
                if stream.response.status != 200 or _content_type(stream.response) != "text/event-stream":
                    return
                for data in stream.messages(self._max_bytes):
                    self._forward(_parse_json(data.encode()), None)
            time.sleep(stream.retry_s)

    # -------------------------------------------------------------------------------------------------------- output

    def _forward(self, message: Any, post: _Post | None) -> bool:
        """Forward a message of the server; True if it answers the request."""
        if not isinstance(message, dict):
            raise ProtocolBreach("a message is not a JSON object")
        self._write(message)
        return post is not None and "method" not in message and message.get("id") == post.id

    def _send_error(self, post: _Post, why: str) -> None:
        if post.id is not None and not post.closed:
            self._write({"jsonrpc": "2.0", "id": post.id, "error": {"code": INTERNAL_ERROR, "message": why}})

    def _write(self, message: Message) -> None:
        try:
            line = json.dumps(message)
        except RecursionError:
            raise ProtocolBreach("a message is nested too deep") from None
        with self._out:
            print_line(line)


class _Post:
    """One message to the server, with its connection."""

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

    def reopen(self, address: tuple[str, int], path: str, last_id: str | None) -> http.client.HTTPResponse:
        """Request the stream from the event after `last_id`."""
        self._headers = {**self._headers, "accept": "text/event-stream"}
        if last_id is not None:
            self._headers["last-event-id"] = last_id
        return self.send("GET", address, path, None)

    def close(self) -> None:
        """End the exchange from any thread."""
        self.closed = True
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class _Stream:
    """A stream of events, with the position at which it is resumed."""

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
    while piece := response.read1(PIECE_BYTES):
        yield piece


def _body(response: http.client.HTTPResponse, limit: int) -> bytes:
    body = bytearray()
    for piece in _pieces(response):
        body += piece
        if len(body) > limit:
            raise ProtocolBreach(f"an answer of more than {limit} bytes")
    return bytes(body)


def _content_type(response: http.client.HTTPResponse) -> str:
    return (response.getheader("Content-Type") or "").partition(";")[0].strip().lower()


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ProtocolBreach("a message is nested too deep") from None
    except ValueError as error:
        raise ProtocolBreach(f"a message is not JSON ({error}): {text[:EXCERPT_BYTES]!r}") from None


def print_line(line: str) -> None:
    left = memoryview(line.encode() + b"\n")
    while left:
        left = left[os.write(1, left) :]


def abort(failure: str, why: str) -> None:
    """Print the last line and end the bridge, and with it the server."""
    print_line(FAILURE_MARK + json.dumps({"failure": failure, "why": why}))
    os._exit(EXIT_STATUS)


def _wait_for_port(server: subprocess.Popen[bytes], port: int, deadline_s: float) -> tuple[str, int]:
    """The address that answers on the port; ends the bridge if none does in time."""
    until = time.monotonic() + deadline_s
    while time.monotonic() < until:
        if (status := server.poll()) is not None:
            os._exit(status if status >= 0 else 128 - status)
        for host in ("127.0.0.1", "::1"):
            with contextlib.suppress(OSError):
                socket.create_connection((host, port), timeout=POLL_S).close()
                return host, port
        time.sleep(POLL_S)
    abort(NEVER_OPENED, f"the server did not open port {port} within {deadline_s:g} s")
    raise AssertionError("unreachable: the process has ended")


def main() -> None:
    options = json.loads(sys.argv[1])
    argv = sys.argv[2:]
    if argv[0] == "python3":
        argv[0] = sys.executable
    try:
        # the server's output goes to standard error: only the bridge writes to standard output
        server = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=2)
    except OSError as error:
        abort(LOST, f"the server cannot be started: {argv[0]}: {error.strerror}")
        return
    address = _wait_for_port(server, options["port"], options["deadline_s"])
    Bridge(address, options["path"], options["max_bytes"], server).run()
