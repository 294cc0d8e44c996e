"""MCP over standard streams, relayed to a server that speaks streamable HTTP: for programs that know only the former.

It runs inside the sandbox of an agent program, where it has the standard library alone, and as ``gymcp connect``. Each
line of standard input is posted; every message of the answer, which comes as JSON or as a stream of events, is a line
of standard output. Messages that a server sends without being asked are not relayed.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable, Iterator
from http.client import HTTPException
from typing import IO, Any

URL_VARIABLE, KEY_VARIABLE = "GYMCP_MCP_URL", "GYMCP_MCP_KEY"
MAX_AT_ONCE = 64
"""Requests under way; later ones wait."""
EXCERPT_CHARS = 300
"""Characters of a failure's body in the error."""
PARSE_ERROR, INTERNAL_ERROR = -32700, -32603
_LOOPBACK = ("127.0.0.1", "localhost", "::1")

Message = dict[str, Any]


def main() -> None:
    url, key = os.environ.get(URL_VARIABLE), os.environ.get(KEY_VARIABLE, "")
    if not url:
        sys.stderr.write(f"stdio_relay: no address: set {URL_VARIABLE}, and {KEY_VARIABLE} to the key\n")
        sys.exit(2)
    Relay(url, key, sys.stdout.buffer).run(sys.stdin.buffer)


class Relay:
    """Relays the messages of one client. `key`: sent as a bearer token; empty: none is."""

    def __init__(self, url: str, key: str, output: IO[bytes]) -> None:
        self._url = url
        self._headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        direct = [urllib.request.ProxyHandler({})] if urllib.parse.urlsplit(url).hostname in _LOOPBACK else []
        self._opener = urllib.request.build_opener(_NoRedirect, *direct)
        self._output = output
        self._lock = threading.Lock()
        self._slots = threading.BoundedSemaphore(MAX_AT_ONCE)
        self._threads: list[threading.Thread] = []

    def run(self, lines: Iterable[bytes]) -> None:
        """Relay every line, until the input ends and all requests are answered."""
        for line in lines:
            if line.strip():
                self._relay(line)
        for thread in self._threads:
            thread.join()
        if "Mcp-Session-Id" in self._headers:
            with contextlib.suppress(OSError, HTTPException):
                self._open(None, "DELETE").close()

    def _relay(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError) as error:
            self._fail(None, f"not JSON: {error}", PARSE_ERROR)
            return
        if not isinstance(message, dict):
            self._fail(None, "a message is a JSON object", PARSE_ERROR)
        elif "id" not in message or message.get("method") in (None, "initialize"):
            self._post(message)  # in order: later requests need the session that these begin
        else:
            self._slots.acquire()
            thread = threading.Thread(target=self._post_in_thread, args=(message,), daemon=True)
            self._threads = [*(each for each in self._threads if each.is_alive()), thread]
            thread.start()

    def _post_in_thread(self, message: Message) -> None:
        try:
            self._post(message)
        finally:
            self._slots.release()

    def _post(self, message: Message) -> None:
        """Send one message and write its answer; a failure is the answer of a request."""
        id = message.get("id") if "method" in message else None
        try:
            with self._open(message, "POST") as response:
                for found in _read_messages(response):
                    self._note_version(message, found)
                    self._write(found)
        except urllib.error.HTTPError as error:
            with error:
                self._fail(id, _explain(error))
        except (OSError, HTTPException, ValueError, RecursionError) as error:
            self._fail(id, f"{self._url}: {getattr(error, 'reason', None) or error}")

    def _open(self, message: Message | None, method: str) -> Any:
        body = None if message is None else json.dumps(message).encode()
        request = urllib.request.Request(self._url, body, self._headers, method=method)
        response = self._opener.open(request)
        if message is not None and message.get("method") == "initialize" and response.headers.get("Mcp-Session-Id"):
            self._headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        return response

    def _note_version(self, message: Message, answer: Any) -> None:
        """Name the protocol version that the server has chosen in all later requests."""
        if message.get("method") == "initialize" and isinstance(answer, dict):
            result = answer.get("result")
            if isinstance(result, dict) and isinstance(result.get("protocolVersion"), str):
                self._headers["MCP-Protocol-Version"] = result["protocolVersion"]

    def _fail(self, id: Any, why: str, code: int = INTERNAL_ERROR) -> None:
        """Answer a request with an error; say it on standard error if there is none to answer."""
        if id is None and code != PARSE_ERROR:
            sys.stderr.write(f"gymcp connect: {why}\n")
            return
        self._write({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": why}})

    def _write(self, message: Any) -> None:
        with self._lock:
            try:
                self._output.write(json.dumps(message).encode() + b"\n")
                self._output.flush()
            except BrokenPipeError:  # the client has gone
                os._exit(0)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirection is a failure: the key is for one server."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _read_messages(response: Any) -> Iterator[Any]:
    """The messages of an answer. Raises ValueError if they are not JSON."""
    kind = (response.headers.get("Content-Type") or "").partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        for data in _read_events(response):
            yield json.loads(data)
        return
    body = response.read()
    if body.strip():
        found = json.loads(body)
        yield from found if isinstance(found, list) else [found]


def _read_events(lines: Iterable[bytes]) -> Iterator[str]:
    """The data of each event of a stream."""
    data: list[str] = []
    for line in lines:
        name, _, value = line.decode("utf-8", "replace").rstrip("\r\n").partition(":")
        if name == "data":
            data.append(value.removeprefix(" "))
        elif not name and not value and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def _explain(error: urllib.error.HTTPError) -> str:
    """The status, and the reason that the body gives."""
    body = error.read().decode("utf-8", "replace").strip()
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        body = str(json.loads(body)["error"]["message"])
    return f"HTTP {error.code}: {body[:EXCERPT_CHARS] or error.reason}"


if __name__ == "__main__":
    main()
