"""Sessions with servers that a fork server starts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from code_runner import CodeRunner

from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import ToolCall

FORKED = native_server("code_runner", CodeRunner, start="fork")
STARTED = native_server("code_runner", CodeRunner)


@contextlib.asynccontextmanager
async def open_code_runner(sandbox: Sandbox, spec: ServerSpec = FORKED) -> AsyncIterator[ToolSession]:
    async with open_session(spec, sandbox, initial_state={"note": "first"}, seed=1) as opened:
        yield opened


async def write(opened: ToolSession, note: str) -> str:
    result = await opened.call_tool(ToolCall(id="", name="write", arguments={}), {"note": note}, timeout_s=20)
    return result.content


async def run(opened: ToolSession, code: str) -> str:
    result = await opened.call_tool(ToolCall(id="", name="run", arguments={}), {"code": code}, timeout_s=20)
    assert not result.is_error, result.content
    return result.content


def process_of(opened: ToolSession) -> ForkedProcess:
    assert isinstance(opened.process, ForkedProcess)
    return opened.process
