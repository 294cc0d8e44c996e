"""Servers as they stood at one point, to go on from: what a snapshot of a world is made of.

What can bring a server back faster than running its calls again is a `Capture`; the first that can, does.
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
from gymcp.mcp_servers.snapshots.process_fork import Copy, fork_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.mcp_servers.workspaces.workspace import SavedWorkspace, save_workspace
from gymcp.types import Json


class ServerImage(Protocol):
    """A server that stands still: live ones can be made from it, at the same time."""

    def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AbstractAsyncContextManager[ToolSession]:
        """A live one of its own. Raises EnvInfraError; CannotFork where another way may still bring it back."""
        ...

    def discard(self) -> None:
        """Frees what it holds. Harmless when called again."""
        ...


class Capture(Protocol):
    """One way to copy a server."""

    async def __call__(self, session: ToolSession, opens: int | None) -> ServerImage | None:
        """The image, to be opened `opens` times, None: any number; no image where this way is none for this server.

        Raises SnapshotError.
        """
        ...


class ForkImage:
    """Copies of a live native server, made by fork: as many as will be opened, or one from which others are forked.

    It belongs to the event loop, and ends with the template, that the server was forked from.
    """

    def __init__(self, copies: Iterable[Copy], *, again: bool) -> None:
        self._copies = deque(copies)
        self._again = again
        self._turn = asyncio.Lock()
        self._loop = asyncio.get_running_loop()
        self._ending: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AsyncIterator[ToolSession]:
        copy = await self._next()
        async with copy.open() as session:
            yield session

    async def _next(self) -> Copy:
        if self._loop is not asyncio.get_running_loop() or not self._copies:
            raise CannotFork("the copy of the live server is of another event loop, used up, or discarded")
        if not self._again:
            return self._copies.popleft()
        try:
            async with self._turn:
                (copy,) = await self._copies[0].fork(1)
        except ServerDied as error:  # a limit that ended its origin took it along
            raise CannotFork(str(error)) from error
        return copy

    def discard(self) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the copies
            self._loop.call_soon_threadsafe(self._discard)

    def _discard(self) -> None:
        while self._copies:
            task = self._loop.create_task(self._copies.popleft().discard())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileImage:
    """The workspace of a server whose state is its files; a new process starts on a copy of it."""

    spec: ServerSpec
    saved: SavedWorkspace

    def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AbstractAsyncContextManager[ToolSession]:
        return open_session(self.spec, sandbox, initial_state=initial_state, seed=seed, saved=self.saved, task=task)

    def discard(self) -> None:
        self.saved.discard()


@dataclass(frozen=True, slots=True, kw_only=True)
class FreshImage:
    """A server without state is started anew."""

    spec: ServerSpec

    def open(
        self, sandbox: Sandbox, *, initial_state: Json, seed: int, task: str = ""
    ) -> AbstractAsyncContextManager[ToolSession]:
        return open_session(self.spec, sandbox, initial_state=initial_state, seed=seed, task=task)

    def discard(self) -> None:
        pass


async def capture_by_fork(session: ToolSession, opens: int | None) -> ServerImage | None:
    """For native servers that were forked themselves."""
    try:
        copies = await fork_session(session, 1 if opens is None else opens)
    except CannotFork:
        return None
    return ForkImage(copies, again=opens is None)


async def capture_files(session: ToolSession, opens: int | None) -> ServerImage | None:
    """For servers whose state is their files."""
    if session.workspace is None:
        return None
    return FileImage(spec=session.spec, saved=await save_workspace(session.workspace))


async def capture_nothing(session: ToolSession, opens: int | None) -> ServerImage | None:
    """For servers without state."""
    return FreshImage(spec=session.spec) if session.spec.state == "stateless" else None


CAPTURES: tuple[Capture, ...] = (capture_by_fork, capture_files, capture_nothing)
"""Tried in this order."""


async def capture_server(
    session: ToolSession, opens: int | None, captures: Sequence[Capture] = CAPTURES
) -> ServerImage | None:
    """The image by the first way that fits; None where there is none."""
    for way in captures:
        if (image := await way(session, opens)) is not None:
            return image
    return None
