"""Episodes for callers without an event loop: a thread runs them and keeps their fork servers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gymcp.aio import BackgroundLoop
from gymcp.envs.episodes.episode import Episode
from gymcp.envs.errors import ResetNeeded
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox

T = TypeVar("T")
OpenEpisode = Callable[[Sandbox], AbstractAsyncContextManager[Episode]]
"""Opens an episode in a warm sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Host:
    """Resource of the loop."""

    sandbox: Sandbox
    """The warm sandbox."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """Tasks of the episodes."""


class EpisodeLoop:
    """A thread that runs episodes. It starts with the first one, and ends with its last user or with the process.

    At its end, all episodes are closed.
    """

    def __init__(self, sandbox: Sandbox) -> None:
        self._cold_sandbox = sandbox
        self._users = 1
        self._lock = threading.Lock()
        self._background: BackgroundLoop[_Host] | None = None

    @property
    def is_here(self) -> bool:
        """False in a fork of the process, which has none of its threads."""
        return self._background is None or self._background.is_here

    def join(self) -> EpisodeLoop:
        """Registers one more user, who must leave, too."""
        with self._lock:
            self._users += 1
        return self

    def leave(self) -> None:
        """Removes one user. Call it once for each user."""
        with self._lock:
            self._users -= 1
            remaining = self._users
        if remaining == 0 and self._background is not None:
            self._background.end()

    def open(self, open_episode: OpenEpisode) -> EpisodeHandle:
        """An episode that is being opened; `EpisodeHandle.episode` waits for it."""
        with self._lock:
            if self._background is None:
                self._background = BackgroundLoop("gymcp-episodes", _run_host(self._cold_sandbox))
        handle = EpisodeHandle(self._background)
        host = self._background.resource
        self._background.call(_begin, host, handle, open_episode(host.sandbox))
        return handle


@contextlib.asynccontextmanager
async def _run_host(sandbox: Sandbox) -> AsyncIterator[_Host]:
    async with open_warm_sandbox(sandbox) as warm:
        host = _Host(sandbox=warm)
        yield host
        for task in host.tasks:
            task.cancel()
        if host.tasks:
            await asyncio.wait(host.tasks)


def _begin(host: _Host, handle: EpisodeHandle, opening: AbstractAsyncContextManager[Episode]) -> None:
    task = asyncio.get_running_loop().create_task(handle.live(opening))
    host.tasks.add(task)
    task.add_done_callback(host.tasks.discard)


class EpisodeHandle:
    """An episode in a task of its own, which opens, steps and closes it, as the MCP SDK requires."""

    def __init__(self, background: BackgroundLoop[_Host]) -> None:
        self._background = background
        self._opened: Future[Episode] = Future()
        self._closed: Future[None] = Future()
        self._inbox: asyncio.Queue[tuple[Callable[[Episode], Awaitable[Any]], Future[Any]] | None] = asyncio.Queue()

    @property
    def episode(self) -> Episode:
        """The episode; waits until it is open. Raises what opening it raises."""
        return self._opened.result()

    async def live(self, opening: AbstractAsyncContextManager[Episode]) -> None:
        """Runs the episode: opens it, does the work from the inbox, and closes it."""
        try:
            async with opening as episode:
                self._opened.set_result(episode)
                while item := await self._inbox.get():
                    work, answer = item
                    try:
                        answer.set_result(await work(episode))
                    except Exception as error:  # raised in the caller's thread
                        answer.set_exception(error)
                    finally:
                        answer.cancel()  # no caller waits for ever
        except Exception as error:
            (self._closed if self._opened.done() else self._opened).set_exception(error)
        finally:
            self._opened.cancel()
            if not self._closed.done():
                self._closed.set_result(None)
            while not self._inbox.empty():
                if item := self._inbox.get_nowait():
                    item[1].cancel()

    def run(self, work: Callable[[Episode], Awaitable[T]]) -> T:
        """The result of `work`, run in the episode's own task. Raises ResetNeeded if that task has ended."""
        if not self._background.is_here:
            raise ResetNeeded("the episode is another process's; reset first")
        answer: Future[T] = Future()

        def put() -> None:
            if self._closed.done():
                answer.set_exception(ResetNeeded("the episode has ended, or did not begin; reset first"))
            else:
                self._inbox.put_nowait((work, answer))

        self._background.call(put)
        return answer.result()

    def close(self) -> None:
        """Closes the episode, and returns when its servers have ended. Raises what ending them raises."""
        if not self._background.is_here:
            return
        if not self._closed.done():
            self._background.call(self._inbox.put_nowait, None)
        self._closed.result()
