"""Calls of tools in a live session."""

from __future__ import annotations

from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import ToolCall, ToolResult


async def call(session: ToolSession, name: str, timeout_s: float = 30, **arguments: object) -> ToolResult:
    return await session.call_tool(ToolCall(id="c", name=name), arguments, timeout_s=timeout_s)


async def run(session: ToolSession, code: str) -> str:
    """Answer of a server's tool ``run`` to Python code."""
    result = await call(session, "run", code=code)
    assert not result.is_error, result.content
    return result.content


async def nothing(session: ToolSession) -> None:
    """Body of a session that is expected not to open."""
