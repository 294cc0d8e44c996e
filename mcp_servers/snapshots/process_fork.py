"""Forks of live servers: one way to branch an episode, beside saved workspaces and the replay of calls.

::

    for fork in await fork_session(session, 8):
        async with fork.open() as branch: ...       # in any task, once
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from functools import partial
from typing import Protocol, runtime_checkable

from gymcp.errors import CannotFork
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.sessions.connect import connect
from gymcp.mcp_servers.sessions.session import SessionState, ToolSession
from gymcp.mcp_servers.spec import ServerSpec


class ForkedServer(Protocol):
    """A server in the state that another one had when it was forked; it waits until it is opened or discarded."""

    def open(self) -> contextlib.AbstractAsyncContextManager[ToolSession]:
        """A session with the server, which ends with the context. Enter and leave the context in the same task."""
        ...

    async def fork(self, count: int) -> list[ForkedServer]:
        """Fork the waiting server. Raises CannotFork."""
        ...

    async def discard(self) -> None:
        """End the server; harmless if it was opened or discarded before."""
        ...


@runtime_checkable
class SupportsFork(Protocol):
    """A process that the fork server can fork."""

    async def fork(self, count: int) -> Sequence[ClosableProcess]: ...


class ClosableProcess(SandboxProcess, Protocol):
    """A process that its owner closes, rather than a context."""

    async def close(self) -> None: ...


class _ForkedProcessServer:
    def __init__(self, spec: ServerSpec, state: SessionState, process: ClosableProcess) -> None:
        self._spec = spec
        self._state = state
        self._process = process

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[ToolSession]:
        try:
            begin = partial(ToolSession.resume, tools=self._state.tools)
            async with connect(self._spec, self._process, begin, tracker=self._state.tracker.fork()) as session:
                yield session
        finally:
            await self._process.close()

    async def fork(self, count: int) -> list[ForkedServer]:
        return await _fork(self._spec, self._state, self._process, count)

    async def discard(self) -> None:
        await self._process.close()


async def fork_session(session: ToolSession, count: int) -> list[ForkedServer]:
    """Fork a live session's server `count` times, with its current memory, files in /tmp and /workspace, random state.

    It works between two calls, for native servers that were themselves forked (`ServerSpec.fork`). Raises CannotFork.
    """
    return await _fork(session.spec, session.save(), session.process, count)


async def _fork(spec: ServerSpec, state: SessionState, process: SandboxProcess, count: int) -> list[ForkedServer]:
    if not isinstance(process, SupportsFork):
        raise CannotFork(f"server '{spec.name}': it was not forked by a fork server; replay its calls instead")
    return [_ForkedProcessServer(spec, state, forked) for forked in await process.fork(count)]
