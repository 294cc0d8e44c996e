"""A server with one planned fault at a planned place: the other half of `faults.py`. Runs inside the sandbox.

Its plan is its initial state, ``{"fault": NAME, "at": CALL, "late_s": SECONDS}``. A server with a declared state gets
it over the wire; one whose state is its files reads ``/workspace/fault.json`` before it writes anything.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

from gymcp.mcp_servers.native import runtime

INFO = {"capabilities": {"tools": {}}, "serverInfo": {"name": "faulty", "version": "1"}}
TOOL = {"name": "add", "inputSchema": {"type": "object", "properties": {"note": {"type": "string"}}}}
PLAN, NOTES = Path("/workspace/fault.json"), Path("/workspace/notes")
CHUNK = b"x" * 1_000_000
Request = dict[str, Any]


class Server:
    def __init__(self, reader: BinaryIO, writer: BinaryIO, plan: dict[str, Any] | None) -> None:
        self.reader, self.writer = reader, writer
        self.in_files = plan is not None
        self.plan: dict[str, Any] = plan or {}
        self.notes: list[str] = []
        self.calls = 0

    def send(self, message: dict[str, Any]) -> None:
        self.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def write(self, data: bytes) -> None:
        self.writer.write(data)
        self.writer.flush()

    def answer(self, asked: Request, result: dict[str, Any]) -> None:
        self.send({"id": asked["id"], "result": result})

    def say(self) -> None:
        print("about to do wrong: " + self.plan["fault"], file=sys.stderr, flush=True)

    def key(self) -> str:
        return hashlib.sha256(runtime.canonical_json({"notes": self.notes}).encode()).hexdigest()

    def work(self, asked: Request) -> None:
        self.notes.append(asked["params"]["arguments"]["note"])
        if self.in_files:
            with NOTES.open("a") as file:
                file.write(self.notes[-1] + "\n")

    def result(self) -> dict[str, Any]:
        return {"content": [{"type": "text", "text": str(len(self.notes))}], "_meta": {"gymcp/stateKey": self.key()}}

    def obey(self, asked: Request) -> None:
        self.work(asked)
        self.answer(asked, self.result())

    def stage(self, name: str) -> None:
        if self.plan.get("fault") in STAGES and STAGES[self.plan["fault"]][0] == name:
            self.say()
            STAGES[self.plan["fault"]][1](self)

    def take(self, asked: Request) -> None:
        method = asked["method"]
        if method == "initialize":
            self.answer(asked, {"protocolVersion": asked["params"]["protocolVersion"], **INFO})
        elif method == "gymcp/setup":
            self.plan = asked["params"]["initialState"]
            self.answer(asked, {"stateKey": self.key()})
        elif method == "gymcp/state":
            self.answer(asked, {"stateKey": self.key(), "state": {"notes": self.notes}})
        elif method == "tools/list":
            self.stage("list")
            self.answer(asked, {"tools": [TOOL]})
        elif method == "tools/call":
            self.calls += 1
            if self.calls == self.plan.get("at") and self.plan["fault"] in CALLS:
                self.say()
                CALLS[self.plan["fault"]](self, asked)
            else:
                self.obey(asked)
        else:
            self.send({"id": asked["id"], "error": {"code": -32601, "message": "no such method"}})

    def serve(self) -> None:
        self.stage("start")
        while True:
            line = self.reader.readline(1_000_000)
            if not line:
                return
            asked = json.loads(line)
            if "id" in asked:
                self.take(asked)


def end(*_: object) -> NoReturn:
    os._exit(9)


def hang(*_: object) -> NoReturn:
    while True:
        time.sleep(3600)


def die_half_done(server: Server, asked: Request) -> None:
    server.work(asked)
    end()


def die_after(server: Server, asked: Request) -> None:
    server.obey(asked)
    end()


def crash(*_: object) -> None:
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)
    hang()  # process 1 of a namespace, or one that may signal nobody, survives that


def abort(*_: object) -> None:
    os.abort()


def answer_late(server: Server, asked: Request) -> None:
    time.sleep(server.plan["late_s"])
    server.obey(asked)


def answer_twice(server: Server, asked: Request) -> None:
    server.obey(asked)
    server.answer(asked, server.result())


def answer_another_id(server: Server, asked: Request) -> None:
    server.work(asked)
    server.answer({"id": 987654}, server.result())


def answer_a_stranger_first(server: Server, asked: Request) -> None:
    server.answer({"id": "nobody"}, server.result())
    server.obey(asked)


def answer_garbage(server: Server, asked: Request) -> None:
    server.write(b"Traceback (most recent call last):\n")
    server.obey(asked)


def answer_half(server: Server, asked: Request) -> None:
    server.write(b'{"jsonrpc": "2.0", "id": ')
    end()


def answer_bytes(server: Server, asked: Request) -> None:
    server.write(b"\xff\xfe\x00\x80\n")


def answer_a_list(server: Server, asked: Request) -> None:
    server.write(b"[1, 2, 3]\n")


def answer_another_shape(server: Server, asked: Request) -> None:
    server.work(asked)
    server.answer(asked, {"content": 42, "_meta": {"gymcp/stateKey": server.key()}})


def answer_an_error(server: Server, asked: Request) -> None:
    server.work(asked)
    server.send({"id": asked["id"], "error": {"code": -32603, "message": "internal"}})


def answer_100_mb(server: Server, asked: Request) -> None:
    server.write(b'{"jsonrpc": "2.0", "id": 1, "result": {"content": [{"type": "text", "text": "')
    for _ in range(100):
        server.write(CHUNK)
    server.write(b'"}]}}\n')


def flood_stderr(server: Server, asked: Request) -> None:
    for _ in range(5):
        os.write(2, CHUNK)
    print("about to do wrong: " + server.plan["fault"], file=sys.stderr, flush=True)
    server.obey(asked)


def flood_notices(server: Server, asked: Request) -> None:
    for number in range(200):
        server.send({"method": "notifications/message", "params": {"level": "info", "data": number}})
    server.obey(asked)


def close_input(server: Server, asked: Request) -> None:
    server.obey(asked)
    close(server.reader)
    hang()


def close_output(server: Server, asked: Request) -> None:
    server.work(asked)
    close(server.writer)
    hang()


def close(end_of_wire: BinaryIO) -> None:
    if hasattr(end_of_wire, "close"):
        end_of_wire.close()
    else:
        os.close(3)  # the wire of a forked server


def ignore_termination(server: Server, asked: Request) -> None:
    for name in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(name, signal.SIG_IGN)
    server.obey(asked)


def leave_a_child() -> None:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        hang()


def leave_a_child_and_obey(server: Server, asked: Request) -> None:
    leave_a_child()
    server.obey(asked)


def die_with_a_child(server: Server, asked: Request) -> None:
    leave_a_child()
    end()


def use_up_processes(server: Server, asked: Request) -> None:
    try:
        while True:
            leave_a_child()
    except OSError:
        end()


def use_up_memory(server: Server, asked: Request) -> None:
    chunks = []
    while True:
        chunks.append(bytearray(CHUNK))


def print_first(server: Server) -> None:
    server.write(b"Welcome to the faulty server!\n")


STAGES: dict[str, tuple[str, Callable[[Server], None]]] = {
    "dies at start": ("start", end),
    "hangs at start": ("start", hang),
    "prints before the handshake": ("start", print_first),
    "dies while it lists its tools": ("list", end),
    "hangs while it lists its tools": ("list", hang),
}
CALLS: dict[str, Callable[[Server, Request], None]] = {
    "dies before a call": end,
    "dies in a call": die_half_done,
    "dies after a call": die_after,
    "crashes": crash,
    "aborts": abort,
    "hangs": hang,
    "answers late": answer_late,
    "answers twice": answer_twice,
    "answers another request": answer_another_id,
    "answers nobody first": answer_a_stranger_first,
    "answers garbage": answer_garbage,
    "answers half a line and dies": answer_half,
    "answers bytes": answer_bytes,
    "answers a list": answer_a_list,
    "answers in another shape": answer_another_shape,
    "answers an error": answer_an_error,
    "answers 100 MB": answer_100_mb,
    "floods its standard error": flood_stderr,
    "floods with notices": flood_notices,
    "closes its input": close_input,
    "closes its output": close_output,
    "ignores termination": ignore_termination,
    "leaves a child behind": leave_a_child_and_obey,
    "dies and leaves a child": die_with_a_child,
    "uses up its processes": use_up_processes,
    "uses up its memory": use_up_memory,
}


def main() -> None:
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else None
    Server(*runtime.claim_wire(), plan).serve()
