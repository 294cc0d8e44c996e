"""MCP over standard streams, relayed to servers over HTTP: sessions, events, failures, and whom the key is told."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from gymcp.mcp_servers.programs.stdio_relay import Relay


@dataclass
class Server:
    """An MCP server with sessions: it answers with what was sent, as the test chooses."""

    port: int = 0
    seen: list[tuple[str, dict[str, str], Any]] = field(default_factory=list)
    """(method, headers, body) of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"


@pytest.fixture
def server() -> Iterator[Server]:
    shared = Server()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            shared.seen.append((self.command, dict(self.headers), body))
            answer(self, body)

        def do_DELETE(self) -> None:
            shared.seen.append((self.command, dict(self.headers), None))
            reply(self, 200, "", "text/plain")

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        shared.port = running.server_address[1]
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield shared
        running.shutdown()


def reply(handler: BaseHTTPRequestHandler, status: int, text: str, kind: str, **headers: str) -> None:
    handler.send_response(status)
    for name, value in {"Content-Type": kind, "Content-Length": str(len(text.encode())), **headers}.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.end_headers()
    handler.wfile.write(text.encode())


def answer(handler: BaseHTTPRequestHandler, body: Any) -> None:
    method = body.get("method")
    result = {"jsonrpc": "2.0", "id": body.get("id"), "result": {"protocolVersion": "2025-06-18", "said": method}}
    if method == "initialize":
        reply(handler, 200, json.dumps(result), "application/json", Mcp_Session_Id="s1")
    elif "id" not in body:
        reply(handler, 202, "", "text/plain")
    elif method == "events":
        note = {"jsonrpc": "2.0", "method": "notifications/progress"}
        events = f": hello\n\ndata: {json.dumps(note)}\n\nevent: message\ndata: {json.dumps(result)}\n\n"
        reply(handler, 200, events, "text/event-stream; charset=utf-8")
    elif method == "moved":
        reply(handler, 307, "", "text/plain", Location="/other")
    elif method == "refused":
        reply(handler, 401, json.dumps({"error": {"message": "the key is not that of a live episode"}}), "text/json")
    elif method == "html":
        reply(handler, 200, "<p>", "text/html")
    else:
        reply(handler, 200, json.dumps(result), "application/json")


def relay(url: str, *lines: object) -> list[Any]:
    """Lines that the relay writes for these lines."""
    output = io.BytesIO()
    sent = [line if isinstance(line, bytes) else json.dumps(line).encode() + b"\n" for line in lines]
    Relay(url, "secret", output).run(sent)
    return [json.loads(line) for line in output.getvalue().splitlines()]


def request(method: str, id: int = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": {}}


def test_a_session_is_kept_and_ended(server: Server) -> None:
    (first, second) = relay(
        server.url, request("initialize", 0), {"jsonrpc": "2.0", "method": "notifications/initialized"}, request("x")
    )
    assert (first["id"], second["id"], second["result"]["said"]) == (0, 1, "x")
    assert [(verb, body and body.get("method")) for verb, _, body in server.seen] == [
        ("POST", "initialize"),
        ("POST", "notifications/initialized"),
        ("POST", "x"),
        ("DELETE", None),
    ]
    for _, headers, _ in server.seen[1:]:
        names = {name.lower(): value for name, value in headers.items()}
        assert (names["mcp-session-id"], names["mcp-protocol-version"]) == ("s1", "2025-06-18")
        assert names["authorization"] == "Bearer secret"


def test_every_event_of_an_answer_is_a_line(server: Server) -> None:
    note, result = relay(server.url, request("events"))
    assert (note["method"], result["result"]["said"]) == ("notifications/progress", "events")


def test_many_requests_at_once_are_all_answered(server: Server) -> None:
    found = relay(server.url, *(request("x", number) for number in range(100)))
    assert sorted(each["id"] for each in found) == [*range(100)]


@pytest.mark.parametrize(
    ("method", "says"),
    [
        ("refused", "HTTP 401: the key is not that of a live episode"),
        ("moved", "HTTP 307"),
        ("html", "Expecting value"),
    ],
)
def test_a_failure_is_the_answer_of_its_request(server: Server, method: str, says: str) -> None:
    failed, fine = sorted(relay(server.url, request(method, 1), request("x", 2)), key=lambda each: each["id"])
    assert (says in failed["error"]["message"], fine["result"]["said"]) == (True, "x")
    assert len(server.seen) == 2  # a redirection is not followed: the key is for one server


@pytest.mark.parametrize("line", [b"{\n", b"[]\n", b"\xff\n", b"[" * 100_000 + b"\n"])
def test_an_invalid_line_is_answered(server: Server, line: bytes) -> None:
    broken, fine = relay(server.url, line, request("x"))
    assert (broken["error"]["code"], fine["result"]["said"]) == (-32700, "x")


def test_a_missing_server_is_named() -> None:
    (failed,) = relay("http://127.0.0.1:9/mcp", request("x"))
    assert "http://127.0.0.1:9/mcp" in failed["error"]["message"]
    assert "refused" in failed["error"]["message"]
