"""Sessions with servers that a fork server starts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from code_runner import CodeRunner
from session_calls import call

from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec

FORKED = native_server("code_runner", CodeRunner, start="fork")
STARTED = native_server("code_runner", CodeRunner)


@contextlib.asynccontextmanager
async def open_code_runner(sandbox: Sandbox, spec: ServerSpec = FORKED) -> AsyncIterator[ToolSession]:
    async with open_session(spec, sandbox, initial_state={"note": "first"}, seed=1) as opened:
        yield opened


async def write(opened: ToolSession, note: str) -> str:
    return (await call(opened, "write", note=note)).content


def process_of(opened: ToolSession) -> ForkedProcess:
    assert isinstance(opened.process, ForkedProcess)
    return opened.process
