"""Remote servers for tests: on the host's loopback, in threads of the test's own process."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import json
import socket
import ssl
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

TOKEN = "s3cret-t0ken"
HANG_UP = (0, "", b"")
"""Closes the connection instead of an answer."""


class ByHand:
    """A server with MCP sessions that records its requests and answers tool calls as the test says."""

    def __init__(self, answer: Callable[[str, dict[str, Any]], Any]) -> None:
        """`answer`: (tool, arguments) to the text of a result, or to (status, content type, body), or `HANG_UP`."""
        self.asked: list[str] = []
        """Methods of the requests in order of arrival; for a call the tool."""
        self.tools = ["add"]
        self.headers: dict[str, str] = {}
        """Headers of the last request."""
        self.encoding = ""
        """Content encoding that every answer claims."""
        self.broken: tuple[int, str, bytes] | None = None
        """Answer to every request, if it is set."""
        self._answer = answer

    @contextlib.contextmanager
    def serving(self, tls: ssl.SSLContext | None = None) -> Iterator[str]:
        """The server's URL, while the context lasts."""
        here = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:
                """Log nothing."""

            def reply(self, status: int, kind: str, body: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Mcp-Session-Id", "one")
                if here.encoding:
                    self.send_header("Content-Encoding", here.encoding)
                self.end_headers()
                with contextlib.suppress(OSError):  # the other side may have had enough
                    self.wfile.write(body)

            def do_GET(self) -> None:
                self.reply(405, "text/plain", b"")

            do_DELETE = do_GET

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                here.headers = dict(self.headers.items())
                answer = here.respond(asked)
                if answer == HANG_UP:
                    self.close_connection = True
                else:
                    self.reply(*answer)

        class Server(http.server.ThreadingHTTPServer):
            def finish_request(self, request: Any, client_address: Any) -> None:
                if tls is None:
                    super().finish_request(request, client_address)
                    return
                with contextlib.suppress(OSError), tls.wrap_socket(request, server_side=True) as secure:
                    super().finish_request(secure, client_address)

        with Server(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
            thread.start()
            try:
                yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}/mcp"
            finally:
                server.shutdown()
                thread.join()

    def respond(self, asked: dict[str, Any]) -> tuple[int, str, bytes]:
        method, params = asked.get("method", ""), asked.get("params", {})
        self.asked.append(params["name"] if method == "tools/call" else method)
        if self.broken is not None:
            return self.broken
        if method == "server/discover":
            return 400, "text/plain", b"what is that?"
        if "id" not in asked:
            return 202, "text/plain", b""
        if method == "initialize":
            result: Any = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            result["serverInfo"] = {"name": "by hand", "version": "1"}
        elif method == "tools/list":
            result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]}
        else:
            said = self._answer(params["name"], params.get("arguments", {}))
            if isinstance(said, tuple):
                return said
            result = {"content": [{"type": "text", "text": said}]}
        return 200, "application/json", json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}).encode()

    @property
    def calls(self) -> list[str]:
        return [name for name in self.asked if name in self.tools]


def sdk_server() -> MCPServer:
    """A server of the SDK that counts, adds, and repeats the header that it was sent."""
    server = MCPServer("counter", version="1.2", log_level="ERROR")
    seen: list[str] = []

    @server.tool()
    def count(word: str) -> str:
        """Number of calls so far, by all clients."""
        seen.append(word)
        return f"{word} {len(seen)}"

    @server.tool()
    def whoami(ctx: Context) -> str:
        """The authorization header of the request."""
        return str((ctx.headers or {}).get("authorization"))

    return server


@contextlib.contextmanager
def sdk_serving(*, json_response: bool = True, stateless: bool = False) -> Iterator[str]:
    """The URL of `sdk_server`, while the context lasts."""
    app = sdk_server().streamable_http_app(json_response=json_response, stateless_http=stateless)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        config = uvicorn.Config(app, log_level="error", timeout_graceful_shutdown=1, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listener])), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
        finally:
            server.should_exit = True
            thread.join()


if __name__ == "__main__":  # for tests in other folders: until standard input ends
    with sdk_serving() as address:
        print(address, flush=True)
        sys.stdin.read()
