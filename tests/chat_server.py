"""A real HTTP server on loopback whose answers to chat requests are chosen by the test, malformed ones too."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Reply:
    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    promised: int | None = None
    """The content-length header; None for the true length."""
    silent: bool = False
    """True to close the connection without an answer."""


Answer = Callable[[int, dict[str, Any]], Reply]
"""Function from the number of the request, counted from 0, and its body to the reply."""


@dataclass(kw_only=True)
class ChatServer:
    url: str
    requests: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)


def says(text: str = "", *calls: tuple[str, str], prompt: int = 10, completion: int = 5) -> Reply:
    """A chat completion with a text, and calls as (name, arguments as JSON text)."""
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if calls:
        message["tool_calls"] = [
            {"id": f"x{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    usage = {"prompt_tokens": prompt, "completion_tokens": completion}
    return Reply(body=json.dumps({"choices": [{"message": message}], "usage": usage}).encode())


def as_stream(reply: Reply) -> Reply:
    """The same chat completion as a stream, with an event for the role, the text, each call and the usage."""
    whole = json.loads(reply.body)
    message = whole["choices"][0]["message"]
    calls = [{"index": n, **call} for n, call in enumerate(message.get("tool_calls", ()))]
    deltas = [{"role": "assistant"}, {"content": message["content"]}, *({"tool_calls": [call]} for call in calls), {}]
    events: list[dict[str, Any]] = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    events[-1]["choices"][0]["finish_reason"] = "stop"
    lines = [json.dumps(event) for event in (*events, {"choices": [], "usage": whole["usage"]})]
    body = "".join(f"data: {line}\n\n" for line in (*lines, "[DONE]")).encode()
    return Reply(body=body, headers={"content-type": "text/event-stream"})


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that closes its connection."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def chat_server(answer: Answer) -> Iterator[ChatServer]:
    """Serve until the context ends; record every request and its key."""
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            with lock:
                number = len(served.requests)
                served.requests.append(body)
                served.keys.append(self.headers.get("authorization"))
            reply = answer(number, body)
            if reply.silent:
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            size = len(reply.body) if reply.promised is None else reply.promised
            self.send_header("content-length", str(size))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the client may have given up
                self.wfile.write(reply.body)
            self.close_connection = size != len(reply.body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    served = ChatServer(url=f"http://127.0.0.1:{server.server_port}/v1")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served
    finally:
        server.shutdown()
        thread.join(timeout=10)
        server.server_close()
