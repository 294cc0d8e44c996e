"""A forked server with malformed answers to the orders to copy it: one typed error, and nothing left open."""

from __future__ import annotations

import asyncio
import os

import pytest
from code_runner import CodeRunner

from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.types import ToolCall

SPEC = native_server("code_runner", CodeRunner, start="fork")
ANSWERS = {
    "no JSON": b"no JSON",
    "no object": b"[]",
    "nothing": b"",
    "no message": b'{"refused": ""}',
    "an unknown message": b'{"message": "NoSuch"}',
    "a name that is no text": b'{"message": []}',
    "another message": b'{"message": "Loaded"}',
    "a field too many": b'{"message": "CopyChecked", "refused": "", "more": 1}',
    "no reason": b'{"message": "CopyChecked"}',
    "an object as its reason": b'{"message": "CopyChecked", "refused": {"a": 1}}',
    "escapes": b'{"message": "CopyChecked", "refused": "\\u001b]0;title\\u0007because"}',
    "an endless number": b'{"message": "CopyChecked", "refused": ' + b"9" * 60_000 + b"}",
    "nested deep": b'{"message": "CopyChecked", "refused": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "no statuses": b'{"message": "CopyChecked", "refused": ""}',
    "not UTF-8": b"\xff\xfe",
}
STATUSES = {"a number": 1, "none at all": None, "neither numbers nor texts": [{}, "x"]}


def answering(answer: bytes) -> str:
    """Code that has the server send this to every order, with sixteen descriptors."""
    send = f"lambda sock, message, fds=(): socket.send_fds(sock, [{answer!r}], [0] * 16)"
    return f"import socket, sys\nsys.modules['__main__']._send = {send}"


def finishing(statuses: object) -> str:
    """Code that has the server answer as usual, but end with these statuses of its copies."""
    return (
        "import sys\nspawner = sys.modules['__main__']\n"
        "def send(sock, message, fds=(), usual=spawner._send):\n"
        f"    usual(sock, spawner.CopiesFinished({statuses!r}) if hasattr(message, 'statuses') else message, fds)\n"
        "spawner._send = send"
    )


async def call(session: ToolSession, tool: str, **arguments: str) -> str:
    return (await session.call_tool(ToolCall(id="", name=tool), arguments, timeout_s=20)).content


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize(
    "code", [*map(answering, ANSWERS.values()), *map(finishing, STATUSES.values())], ids=[*ANSWERS, *STATUSES]
)
def test_malformed_answer_to_an_order_is_one_typed_error(bwrap: Bubblewrap, code: str) -> None:
    async def episode() -> None:
        async with open_warm_sandbox(bwrap) as warm, open_session(SPEC, warm, initial_state=None, seed=0) as session:
            await call(session, "run", code=code)
            before = open_descriptors()
            with pytest.raises((CannotFork, ServerDied)) as caught:
                await fork_session(session, 2)
            assert "\x1b" not in str(caught.value)
            assert len(str(caught.value)) < 2_000
            assert open_descriptors() <= before

    asyncio.run(episode())
