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
from gymcp.mcp_servers.session import Standing, ToolSession, connected
from gymcp.mcp_servers.spec import ServerSpec


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
    def __init__(self, spec: ServerSpec, standing: Standing, process: ClosableProcess) -> None:
        self._spec = spec
        self._standing = standing
        self._process = process

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[ToolSession]:
        try:
            begin = partial(ToolSession.resume, standing=self._standing)
            async with connected(self._spec, self._process, begin) as session:
                yield session
        finally:
            await self._process.close()

    async def discard(self) -> None:
        await self._process.close()


async def fork_session(session: ToolSession, count: int) -> list[Copy]:
    """Copies of a live session's server, with memory, files in /tmp and /workspace, and random state as they are now.

    For native servers that were themselves forked (`ServerSpec.fork`), between two calls. Raises CannotFork.
    """
    process = session.process
    if not isinstance(process, ForksItself):
        raise CannotFork(f"server '{session.spec.name}': it was not forked from a template; replay its calls instead")
    copies = await process.fork(count)
    standing = session.standing()
    return [_ForkedCopy(session.spec, standing, copy) for copy in copies]
