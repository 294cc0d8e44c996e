"""Copies of live servers, by fork: one way to branch an episode, beside overlays and the replay of calls.

::

    for copy in await fork_session(session, 8):
        async with copy.open() as branch: ...       # any task, once
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Protocol, runtime_checkable

from gymcp.errors import CannotFork
from gymcp.mcp_servers.sandbox import SandboxProcess
from gymcp.mcp_servers.session import ToolSession, connected


class Copy(Protocol):
    """A server that stands where another stood; it waits until it is opened or discarded."""

    def open(self) -> contextlib.AbstractAsyncContextManager[ToolSession]:
        """A session with it; at the end the server ends. Enter and leave it in the same task."""
        ...

    async def discard(self) -> None:
        """Ends it without a session. Harmless afterwards."""
        ...


class Snapshots(Protocol):
    """A way to copy live sessions: here by fork; others may start anew and replay or restore."""

    async def __call__(self, session: ToolSession, count: int, /) -> Sequence[Copy]:
        """Raises CannotFork where this way does not fit the session; another may."""
        ...


@runtime_checkable
class ForksItself(Protocol):
    async def fork(self, count: int) -> Sequence[ClosableProcess]: ...


class ClosableProcess(SandboxProcess, Protocol):
    async def close(self) -> None: ...


class _ForkedCopy:
    def __init__(self, origin: ToolSession, process: ClosableProcess) -> None:
        self._origin = origin
        self._process = process

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[ToolSession]:
        try:
            async with connected(
                self._origin.spec, self._process, lambda session: session.resume(self._origin)
            ) as session:
                yield session
        finally:
            await self._process.close()

    async def discard(self) -> None:
        await self._process.close()


async def fork_session(session: ToolSession, count: int) -> list[Copy]:
    """Copies of a live session's server, with memory, files in /tmp and /workspace, and random state as they are now.

    They know the state that `session` knows when they are opened, so take none of its steps before. For native servers that
    were themselves forked (`ServerSpec.fork`). Call it between two calls. Raises CannotFork.
    """
    process = session.process
    if not isinstance(process, ForksItself):
        raise CannotFork(f"server '{session.spec.name}': it was not forked from a template; replay its calls instead")
    return [_ForkedCopy(session, copy) for copy in await process.fork(count)]
