"""A server with bad intentions, for every start path: it plays attempts, exhausts what it is given, and lies.

It speaks MCP by hand, so that it can break every rule of it. Standard library only; it runs inside.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
from typing import Any

from inside import ATTEMPTS, play

from gymcp.mcp_servers.native import runtime

OBJECT = {"type": "object"}
COMPLETE = {"resultType": "complete", "_meta": {runtime.STATE_KEY: "0" * 64}}
"""Fields of a result on the wire of 2026-07-28, of a server that declares its state."""
CACHED = {"ttlMs": 0, "cacheScope": "private"}
"""Fields of a tool list on the wire of 2026-07-28."""
PLAY_MODULES = ("inside_files", "inside_mounts", "inside_processes", "inside_network", "inside_kernel")
MODULES = ("inside", *PLAY_MODULES, "rogue_lists", "rogue_replies", "rogue_greed", "rogue_files")


class Rogue:
    """One connection."""

    def __init__(self) -> None:
        self.reader, self.writer = runtime.claim_wire()
        self.kept: list[Any] = []
        self.is_new_wire = False

    def say(self, message: Any) -> None:
        if self.is_new_wire and isinstance(result := message.get("result"), dict):
            message = {**message, "result": {**COMPLETE, **result}}
        self.shout(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def shout(self, line: bytes) -> None:
        self.writer.write(line)
        self.writer.flush()

    def hear(self) -> Any:
        return json.loads(self.reader.readline(10_000_000) or b"null")

    def serve(self) -> None:
        while (asked := self.hear()) is not None:
            if "id" in asked and "method" in asked:
                self.is_new_wire = runtime.VERSION_KEY in ((asked.get("params") or {}).get("_meta") or {})
                answer = self.answer(asked)
                if answer is not None:
                    self.say({"id": asked["id"], "result": answer})

    def answer(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """None: it has said what it wanted to say."""
        method, params = asked["method"], asked.get("params") or {}
        if method == "initialize":
            about = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
            return {**about, "serverInfo": {"name": "rogue", "version": "1"}}
        if method == "tools/list":
            kind = os.environ.get("ROGUE_LIST", "usual")
            listed = getattr(importlib.import_module("rogue_lists"), kind)(self, asked)
            return {**listed, **CACHED} if listed is not None and self.is_new_wire else listed
        if method == "gymcp/setup":
            claimed = {"toolsKey": "0" * 64} if os.environ.get("ROGUE_LIE") == "claim_another_list" else {}
            return {"stateKey": "0" * 64, **claimed}
        if method == "gymcp/state":
            return {"stateKey": "0" * 64, "state": {"money": 1}}
        if method != "tools/call":
            return {}
        return self.call(asked, params["name"], params.get("arguments") or {})

    def call(self, asked: dict[str, Any], name: str, arguments: dict[str, Any]) -> dict[str, Any] | None:
        if name == "echo":
            return {**text(arguments["text"]), "structuredContent": {"text": arguments["text"]}}
        if name == "number":
            return text(str(asked["id"]))
        if name == "settle":
            return text(self.settle(arguments["token"]))
        if name == "play":
            for part in PLAY_MODULES:
                importlib.import_module(part)
            wanted = arguments["names"] or list(ATTEMPTS)
            return text(json.dumps(play(wanted, arguments["given"])))
        module, act = importlib.import_module(name), arguments["act"]
        if name == "rogue_replies":
            return getattr(module, act)(self, asked)  # type: ignore[no-any-return]
        return text(str(getattr(module, act)(arguments)))

    def settle(self, token: str) -> str:
        """Make what attackers look for in an honest server: a file, and a socket."""
        with open("token", "w") as file:
            file.write(token)
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(f"\0other-{token}")
        listener.listen()
        self.kept.append(listener)
        return str(os.getpid())


def text(said: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": said}]}


def main() -> None:
    Rogue().serve()


if __name__ == "__main__":
    main()
