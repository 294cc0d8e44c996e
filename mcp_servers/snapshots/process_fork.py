"""Copies of live servers, by fork: one way to branch an episode, beside overlays and the replay of calls.

::

    for copy in await fork_session(session, 8):
        async with copy.open() as branch: ...       # any task, once
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


class Copy(Protocol):
    """A server that stands where another stood; it waits until it is opened or discarded."""

    def open(self) -> contextlib.AbstractAsyncContextManager[ToolSession]:
        """A session with it; at the end the server ends. Enter and leave it in the same task."""
        ...

    async def fork(self, count: int) -> list[Copy]:
        """Copies of it while it waits. Raises CannotFork."""
        ...

    async def discard(self) -> None:
        """Ends it without a session. Harmless afterwards."""
        ...


@runtime_checkable
class ForksItself(Protocol):
    async def fork(self, count: int) -> Sequence[ClosableProcess]: ...


class ClosableProcess(SandboxProcess, Protocol):
    async def close(self) -> None: ...


class _ForkedCopy:
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

    async def fork(self, count: int) -> list[Copy]:
        return await _fork(self._spec, self._state, self._process, count)

    async def discard(self) -> None:
        await self._process.close()


async def fork_session(session: ToolSession, count: int) -> list[Copy]:
    """Copies of a live session's server, with memory, files in /tmp and /workspace, and random state as they are now.

    For native servers that were themselves forked (`ServerSpec.fork`), between two calls. Raises CannotFork.
    """
    return await _fork(session.spec, session.save(), session.process, count)


async def _fork(spec: ServerSpec, state: SessionState, process: SandboxProcess, count: int) -> list[Copy]:
    if not isinstance(process, ForksItself):
        raise CannotFork(f"server '{spec.name}': it was not forked from a template; replay its calls instead")
    return [_ForkedCopy(spec, state, copy) for copy in await process.fork(count)]
