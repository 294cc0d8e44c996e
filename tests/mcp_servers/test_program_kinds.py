"""The two kinds of programs that a fork server forks: their first message, and their sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from base64 import b64decode

import pytest

from gymcp.mcp_servers.forkserver.program_kinds import NativeProgram, ProgramKind, ScriptProgram, program_kind
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.spec import Forkable, Launch

NATIVE = Launch(argv=("python3", "-m", "m"), fork=Forkable(path=("/srv",), module="m"), reads_all=True)
SCRIPT = Launch(argv=("python3", "s.py"), fork=Forkable(path=("/srv",), module="gymcp_script", script=("s.py", "-v")))


def test_the_kind_follows_from_the_program() -> None:
    assert isinstance(program_kind(NATIVE), NativeProgram)
    assert isinstance(program_kind(SCRIPT), ScriptProgram)


def test_a_native_server_may_enter_namespaces_and_its_import_has_no_filter() -> None:
    message = program_kind(NATIVE).load_message(NATIVE, hidden_memory=True)
    assert (message.path, message.module, message.argv, message.reads_all) == (["/srv"], "m", None, True)
    assert b64decode(message.filter) == seccomp.program(network=False, hidden_memory=True, forked_server=True)
    assert message.import_filter == ""


def test_a_script_is_imported_under_a_filter_that_allows_to_make_namespaces() -> None:
    message = program_kind(SCRIPT).load_message(SCRIPT, hidden_memory=False)
    assert message.argv == ["s.py", "-v"]
    assert b64decode(message.filter) == seccomp.program(network=False, hidden_memory=False)
    assert b64decode(message.import_filter) == seccomp.program(
        network=False, hidden_memory=False, makes_namespaces=True
    )


@pytest.mark.parametrize(("kind", "answers_on"), [(NativeProgram(), 0), (ScriptProgram(), 1)])
def test_a_script_answers_on_a_socket_of_its_own(kind: ProgramKind, answers_on: int) -> None:
    async def exchange() -> tuple[bytes, bytes]:
        wire, orders = socket.socketpair(), socket.socketpair(socket.AF_UNIX, kind.orders_type)
        with contextlib.ExitStack() as stack, contextlib.ExitStack() as connections:
            for sock in (*wire, *orders):
                stack.callback(sock.close)
            stdout, stdin = await kind.open_streams(wire[0], orders[0], 100, connections)
            stdin.write(b"question\n")
            await stdin.drain()
            (wire[1], orders[1])[answers_on].sendall(b"answer\n")
            return wire[1].recv(100), await stdout.readline()

    assert asyncio.run(exchange()) == (b"question\n", b"answer\n")
