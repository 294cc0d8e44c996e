"""Sessions with remote servers: live, or from a cassette."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from session_calls import call

from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.spec import ServerSpec

TIMEOUT_S = 60.0
NOWHERE = "http://127.0.0.1:9/mcp"
"""The port of the discard service, which nothing here offers."""


def inside(spec: ServerSpec, work: Callable[[ToolSession], Awaitable[None]], *, task: str = "t") -> None:
    async def main() -> None:
        sandbox = get_sandbox("none")
        async with (
            asyncio.timeout(TIMEOUT_S),
            open_session(spec, sandbox, initial_state=None, seed=0, task=task) as session,
        ):
            await work(session)

    asyncio.run(main())


def stateless(url: str, **more: Any) -> ServerSpec:
    return ServerSpec(name="far", url=url, state="stateless", **more)


def answers_of(spec: ServerSpec, *words: str, task: str = "t") -> list[str]:
    """Answers of `count` to each word, in one episode."""
    found: list[str] = []

    async def work(session: ToolSession) -> None:
        found.extend([(await call(session, "count", word=word)).content for word in words])

    inside(spec, work, task=task)
    return found
