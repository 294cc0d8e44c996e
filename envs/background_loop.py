"""Episodes for callers without an event loop: one in a thread, which also keeps what their servers are forked from."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeVar

from gymcp.envs.episodes.episode import Episode
from gymcp.envs.errors import ResetNeeded
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox

T = TypeVar("T")
Opening = Callable[[Sandbox], AbstractAsyncContextManager[Episode]]


class EpisodeLoop:
    """Begins with its first episode; ends, with all episodes, when its last user leaves, or with the process."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._cold = sandbox
        self._users = 1
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._thread: threading.Thread | None = None
        self._running: Future[tuple[asyncio.AbstractEventLoop, Sandbox]] = Future()
        self._episodes: set[asyncio.Task[None]] = set()

    @property
    def is_here(self) -> bool:
        """False in a fork of the process, which has none of its threads."""
        return self._process == os.getpid()

    def join(self) -> EpisodeLoop:
        """For one more user, who must leave, too."""
        with self._lock:
            self._users += 1
        return self

    def leave(self) -> None:
        """Once for every user."""
        with self._lock:
            self._users -= 1
            left = self._users
        if left == 0:
            self.end()

    def open(self, opening: Opening) -> HostedEpisode:
        """An episode that is being opened; `HostedEpisode.opened` waits for it."""
        with self._lock:
            if self._thread is None:
                # a daemon, because the interpreter waits for others before it calls what is registered with atexit
                self._thread = threading.Thread(target=self._run, name="gymcp-episodes", daemon=True)
                self._thread.start()
                atexit.register(self.end)
        loop, sandbox = self._running.result()
        episode = HostedEpisode(self, loop)
        loop.call_soon_threadsafe(self._begin, episode, opening(sandbox))
        return episode

    def _begin(self, episode: HostedEpisode, opening: AbstractAsyncContextManager[Episode]) -> None:
        task = asyncio.get_running_loop().create_task(episode.live(opening))
        self._episodes.add(task)
        task.add_done_callback(self._episodes.discard)

    def _run(self) -> None:
        try:
            asyncio.run(self._live())
        except BaseException as error:
            if self._running.done():
                raise
            self._running.set_exception(error)

    async def _live(self) -> None:
        self._ended = asyncio.Event()
        async with open_warm_sandbox(self._cold) as sandbox:
            self._running.set_result((asyncio.get_running_loop(), sandbox))
            await self._ended.wait()
            for task in self._episodes:
                task.cancel()
            if self._episodes:
                await asyncio.wait(self._episodes)

    def end(self) -> None:
        """Returns when nothing is left. Harmless when it has ended, and where it is not."""
        atexit.unregister(self.end)
        if self._thread is None or not self._thread.is_alive() or not self.is_here:
            return
        loop, _ = self._running.result()
        loop.call_soon_threadsafe(self._ended.set)
        self._thread.join()


class HostedEpisode:
    """An episode in a task of its own, which opens, steps and closes it: a rule of the SDK."""

    def __init__(self, host: EpisodeLoop, loop: asyncio.AbstractEventLoop) -> None:
        self._host = host
        self._loop = loop
        self._opened: Future[Episode] = Future()
        self._closed: Future[None] = Future()
        self._inbox: asyncio.Queue[tuple[Callable[[Episode], Awaitable[Any]], Future[Any]] | None] = asyncio.Queue()

    @property
    def opened(self) -> Episode:
        """Waits for it. Raises what opening it raises."""
        return self._opened.result()

    async def live(self, opening: AbstractAsyncContextManager[Episode]) -> None:
        try:
            async with opening as episode:
                self._opened.set_result(episode)
                while item := await self._inbox.get():
                    work, answer = item
                    try:
                        answer.set_result(await work(episode))
                    except Exception as error:  # the caller's thread gets it
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

    def do(self, work: Callable[[Episode], Awaitable[T]]) -> T:
        """What `work` gives, done in the episode's own task. Raises ResetNeeded where that has ended."""
        if not self._host.is_here:
            raise ResetNeeded("the episode is another process's; reset first")
        answer: Future[T] = Future()

        def put() -> None:
            if self._closed.done():
                answer.set_exception(ResetNeeded("the episode has ended, or did not begin; reset first"))
            else:
                self._inbox.put_nowait((work, answer))

        self._loop.call_soon_threadsafe(put)
        return answer.result()

    def close(self) -> None:
        """Returns when its servers have ended. Raises what ending them raises."""
        if not self._host.is_here:
            return
        if not self._closed.done():
            self._loop.call_soon_threadsafe(self._inbox.put_nowait, None)
        self._closed.result()
