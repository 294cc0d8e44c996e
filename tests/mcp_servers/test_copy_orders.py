"""A forked server that answers the orders to copy it as no server does: one typed error, and nothing left open."""

from __future__ import annotations

import asyncio
import os

import pytest
from cell_program import Cell

from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import fork_session
from gymcp.types import ToolCall

SPEC = native_server("cell", Cell, start="fork")
ANSWERS = {
    "no JSON": b"no JSON",
    "no object": b"[]",
    "nothing": b"",
    "an object as its reason": b'{"refused": {"a": 1}}',
    "escapes": b'{"refused": "\\u001b]0;title\\u0007because"}',
    "an endless number": b'{"refused": ' + b"9" * 60_000 + b"}",
    "nested deep": b'{"refused": ' + b"[" * 30_000 + b"]" * 30_000 + b"}",
    "a number of statuses": b'{"refused": "", "settled": 1}',
    "no statuses": b'{"refused": ""}',
    "statuses that are none": b'{"refused": "", "settled": [{}, "x"]}',
    "not UTF-8": b"\xff\xfe",
}


def answering(answer: bytes) -> str:
    """Code that has the server send this to every order, with sixteen descriptors."""
    send = f"lambda sock, message, fds=(): socket.send_fds(sock, [{answer!r}], [0] * 16)"
    return f"import socket, sys\nsys.modules['__main__']._send = {send}"


async def call(session: ToolSession, tool: str, **arguments: str) -> str:
    return (await session.call_tool(ToolCall(id="", name=tool), arguments, timeout_s=20)).content


def open_descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=list(ANSWERS))
def test_malformed_answer_to_an_order_is_one_typed_error(bwrap: Bubblewrap, answer: bytes) -> None:
    async def episode() -> None:
        async with open_warm_sandbox(bwrap) as warm, open_session(SPEC, warm, initial_state=None, seed=0) as session:
            await call(session, "run", code=answering(answer))
            before = open_descriptors()
            with pytest.raises((CannotFork, ServerDied)) as caught:
                await fork_session(session, 2)
            assert "\x1b" not in str(caught.value)
            assert len(str(caught.value)) < 2_000
            assert open_descriptors() <= before

    asyncio.run(episode())
