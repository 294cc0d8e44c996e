"""Snapshots of servers, from which episodes continue; a snapshot of an episode has one for each server.

A `SnapshotStrategy` restores a server faster than the replay of its calls does; the first strategy that fits is used.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.mcp_servers.snapshots.process_fork import ForkedServer, fork_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.workspaces.workspace import SavedWorkspace, save_workspace
from gymcp.types import Json


class ServerSnapshot(Protocol):
    """The state of a server at one point; several live servers can be started from it at the same time."""

    def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AbstractAsyncContextManager[ToolSession]:
        """Start a live server from the snapshot.

        Raises EnvInfraError; CannotFork if the replay of its calls may still restore the server.
        """
        ...

    def discard(self) -> None:
        """Free the resources of the snapshot; harmless when called again."""
        ...


class SnapshotStrategy(Protocol):
    """One way to make a snapshot of a server."""

    async def __call__(self, session: ToolSession, opens: int | None) -> ServerSnapshot | None:
        """A snapshot that can be opened `opens` times (None: any number); None if the server needs another strategy.

        Raises SnapshotError.
        """
        ...


class ForkSnapshot:
    """Forks of a live native server: as many as will be opened, or one from which each `open` forks another.

    The snapshot belongs to its event loop, and ends with the fork server that the server was forked from.
    """

    def __init__(self, forks: Iterable[ForkedServer], *, is_reusable: bool) -> None:
        self._forks = deque(forks)
        self._is_reusable = is_reusable
        self._fork_lock = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AsyncIterator[ToolSession]:
        forked = await self._next()
        async with forked.open() as session:
            yield session

    async def _next(self) -> ForkedServer:
        if self._loop is not asyncio.get_running_loop() or not self._forks:
            raise CannotFork("the copy of the live server is of another event loop, used up, or discarded")
        if not self._is_reusable:
            return self._forks.popleft()
        try:
            async with self._fork_lock:
                (forked,) = await self._forks[0].fork(1)
        except ServerDied as error:  # a limit that ended the original server ended its fork too
            raise CannotFork(str(error)) from error
        return forked

    def discard(self) -> None:
        with contextlib.suppress(RuntimeError):  # the event loop has ended, and with it the forks
            self._loop.call_soon_threadsafe(self._discard)

    def _discard(self) -> None:
        while self._forks:
            task = self._loop.create_task(self._forks.popleft().discard())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSnapshot:
    """The workspace of a server whose state is its files; each `open` starts a new process on a copy."""

    spec: ServerSpec
    saved: SavedWorkspace

    def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AbstractAsyncContextManager[ToolSession]:
        return open_session(self.spec, sandbox, initial_state=initial_state, seed=seed, saved=self.saved, task=task)

    def discard(self) -> None:
        self.saved.discard()


@dataclass(frozen=True, slots=True, kw_only=True)
class StatelessSnapshot:
    """A server without state; each `open` starts a new one."""

    spec: ServerSpec

    def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AbstractAsyncContextManager[ToolSession]:
        return open_session(self.spec, sandbox, initial_state=initial_state, seed=seed, task=task)

    def discard(self) -> None:
        pass


async def snapshot_by_fork(session: ToolSession, opens: int | None) -> ServerSnapshot | None:
    """Snapshot of a native server that was itself forked; None for other servers."""
    try:
        forks = await fork_session(session, 1 if opens is None else opens)
    except CannotFork:
        return None
    return ForkSnapshot(forks, is_reusable=opens is None)


async def snapshot_files(session: ToolSession, opens: int | None) -> ServerSnapshot | None:
    """Snapshot of a server whose state is its files; None for other servers, and for one with services.

    What a service holds in memory is not in its files yet.
    """
    if session.workspace is None or session.spec.services:
        return None
    return FileSnapshot(spec=session.spec, saved=await save_workspace(session.workspace))


async def snapshot_stateless(session: ToolSession, opens: int | None) -> ServerSnapshot | None:
    """Snapshot of a server without state; None for other servers."""
    return StatelessSnapshot(spec=session.spec) if session.spec.is_stateless else None


SNAPSHOT_STRATEGIES: tuple[SnapshotStrategy, ...] = (snapshot_by_fork, snapshot_files, snapshot_stateless)
"""Strategies in the order in which they are tried."""


async def snapshot_server(
    session: ToolSession, opens: int | None, strategies: Sequence[SnapshotStrategy] = SNAPSHOT_STRATEGIES
) -> ServerSnapshot | None:
    """Snapshot by the first strategy that fits the server; None if no strategy fits."""
    for strategy in strategies:
        if (snapshot := await strategy(session, opens)) is not None:
            return snapshot
    return None
