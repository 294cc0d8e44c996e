"""A server whose tools flood its reader, each in the way of its name: the other half of `flood.py`.

Runs inside the sandbox.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, BinaryIO

from gymcp.mcp_servers.native import runtime

INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "flood", "version": "1"}}
SCHEMA = {"type": "object"}
LINES_PER_WRITE = 500
STATE_KEY = runtime.state_key({})
Message = dict[str, Any]
COMPLETE: Message = {
    "resultType": "complete",
    "ttlMs": 0,
    "cacheScope": "private",
    "_meta": {runtime.STATE_KEY: STATE_KEY},
}
"""Fields of a result on the wire of 2026-07-28, of a server that declares its state."""
Flood = Callable[["Server", Message], None]


class Server:
    def __init__(self, reader: BinaryIO, writer: BinaryIO) -> None:
        self.reader, self.writer = reader, writer

    def write(self, data: bytes) -> None:
        self.writer.write(data)
        self.writer.flush()

    def send(self, message: Message) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def answer(self, asked: Message, result: Message) -> None:
        self.send({"id": asked["id"], "result": {**(COMPLETE if is_on_new_wire(asked) else {}), **result}})

    def serve(self) -> None:
        while line := self.reader.readline():
            asked = json.loads(line)
            if "id" not in asked or "method" not in asked:
                continue
            if asked["method"] == "initialize":
                self.answer(asked, {"protocolVersion": asked["params"]["protocolVersion"], **INFO})
            elif asked["method"] == "tools/list":
                self.answer(asked, LISTS[os.environ.get("FLOOD_LIST", "usual_list")]())
            elif asked["method"] in ("gymcp/setup", "gymcp/state"):
                self.answer(asked, {"stateKey": STATE_KEY, "state": {}})
            else:
                params = asked["params"]
                FLOODS[params["name"]](self, asked | {"for_s": params["arguments"]["for_s"]})


def is_on_new_wire(asked: Message) -> bool:
    return runtime.VERSION_KEY in ((asked.get("params") or {}).get("_meta") or {})


def _tool(name: str, **more: Any) -> Message:
    return {"name": name, "inputSchema": SCHEMA, **more}


def usual_list() -> Message:
    return {"tools": [_tool(kind) for kind in FLOODS]}


def many_large_tools() -> Message:
    """A list that is larger than any list may be."""
    return {"tools": [_tool(f"tool{number}", description="x" * 300_000) for number in range(10)]}


def endless_pages() -> Message:
    return {"tools": [], "nextCursor": "more"}


def schema_of_many_parts() -> Message:
    """A schema with about as many parts as a list may have: it is checked in another process."""
    parts: Message = {f"p{number}": {} for number in range(29_000)}
    return {"tools": [{"name": "large", "inputSchema": {**SCHEMA, "properties": parts}}]}


LISTS: dict[str, Callable[[], Message]] = {
    make.__name__: make for make in (usual_list, many_large_tools, endless_pages, schema_of_many_parts)
}
"""Tool lists: a server with any but the first floods at its start."""


def text_result(text: str) -> Message:
    return {"content": [{"type": "text", "text": text}]}


def _raw(server: Server, asked: Message, result: bytes) -> None:
    if is_on_new_wire(asked):
        result = json.dumps(COMPLETE).encode()[:-1] + b"," + result[1:]
    server.write(b'{"jsonrpc":"2.0","id":%d,"result":%s}\n' % (asked["id"], result))


def compute(server: Server, asked: Message) -> None:
    """Write nothing, but take one core, as the floods do."""
    until = time.monotonic() + asked["for_s"]
    while time.monotonic() < until:
        sum(range(10_000))
    server.answer(asked, text_result("done"))


def blocks(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[' + b'{"type":"text","text":""},' * 900_000 + b"{}]}")


def fewer_blocks(server: Server, asked: Message) -> None:
    """Write a result with as many blocks as one message may hold."""
    _raw(server, asked, b'{"content":[' + b'{"type":"text","text":""},' * 24_000 + b'{"type":"text","text":""}]}')


def floats(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[],"structuredContent":{"x":[' + b"0.123456789," * 2_000_000 + b"0]}}")


def fewer_floats(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[],"structuredContent":{"x":[' + b"0.123456789," * 99_000 + b"0]}}")


def escapes(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[{"type":"text","text":"' + b"\\u001b[1m" * 250_000 + b'"}]}')


def kinds_of_blocks(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[' + b'{"type":"resource_link","name":"x","uri":"file:///x"},' * 10_000 + b"{}]}")


def long_text(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[{"type":"text","text":"' + b"x" * 3_000_000 + b'"}]}')


def repeated_secret(server: Server, asked: Message) -> None:
    """Write one secret again and again, each with a control character beside it."""
    said = json.dumps(os.environ["FLOOD_SECRET"])[1:-1] + "\\u0007"
    _raw(server, asked, b'{"content":[{"type":"text","text":"' + (said * (3_500_000 // len(said))).encode() + b'"}]}')


def requests(server: Server, asked: Message) -> None:
    """Ask the client, more often than a server may, without waiting for its answers."""
    _repeat(server, asked, b'{"jsonrpc":"2.0","id":"r","method":"roots/list"}\n')


def deep(server: Server, asked: Message) -> None:
    _raw(server, asked, b'{"content":[],"structuredContent":{"x":' + b"[" * 30_000 + b"]" * 30_000 + b"}}")


def _repeat(server: Server, asked: Message, line: bytes) -> None:
    """Write the line again and again for as long as the call asks, then answer."""
    until = time.monotonic() + asked["for_s"]
    while time.monotonic() < until:
        server.write(line * LINES_PER_WRITE)
    server.answer(asked, text_result("done"))


def progress(server: Server, asked: Message) -> None:
    _repeat(
        server,
        asked,
        b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1}}\n',
    )


def blank_lines(server: Server, asked: Message) -> None:
    _repeat(server, asked, b"\n")


def pings(server: Server, asked: Message) -> None:
    until = time.monotonic() + asked["for_s"]
    while time.monotonic() < until:
        server.write(b'{"jsonrpc":"2.0","id":"p","method":"ping"}\n' * 100)
        for _ in range(100):
            server.reader.readline()
    server.answer(asked, text_result("done"))


def drip(server: Server, asked: Message) -> None:
    """Write a result byte by byte."""
    server.write(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % asked["id"])
    until = time.monotonic() + asked["for_s"]
    while time.monotonic() < until:
        server.write(b"x")
    server.write(b'"}]}}\n')


def errors(server: Server, asked: Message) -> None:
    """Flood standard error."""
    until = time.monotonic() + asked["for_s"]
    while time.monotonic() < until:
        sys.stderr.write("x" * 65_536)
    server.answer(asked, text_result("done"))


FLOODS: dict[str, Flood] = {
    flood.__name__: flood
    for flood in (
        *(
            compute,
            blocks,
            fewer_blocks,
            floats,
            fewer_floats,
            escapes,
            long_text,
            repeated_secret,
            kinds_of_blocks,
            deep,
        ),
        *(progress, blank_lines, pings, requests, drip, errors),
    )
}


def main() -> None:
    Server(*runtime.claim_wire()).serve()
