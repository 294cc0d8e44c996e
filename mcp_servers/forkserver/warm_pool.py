"""A pool of things that are slow to start, such as servers: prestarted, handed out once, ended after use.

This is valid only if a start does not depend on the task: whatever makes one episode differ from another comes later,
over the wire (`gymcp/setup`), never as an argument, a variable or a folder. `Launch` holds everything that a start
depends on, so equal launches without a host folder are interchangeable until something is sent to them. A pool saves no
CPU time. It pays if starting means waiting, or if the machine idles while a model thinks. So only a few members start
at a time, which leaves the machine to the episodes, after a failed start there is a pause, and a single episode, after
which no other comes, has nothing started ahead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
TTL_S = 300.0
"""Seconds after which a member that was not used is ended."""
FIRST_PAUSE_S, MAX_PAUSE_S = 1.0, 60.0
"""Seconds without prestarts after one has failed. The pause doubles with each further failure."""

log = logging.getLogger(__name__)


class _Member(Generic[T]):
    """One thing, opened and closed by a task of its own, while another task uses it."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.is_prestarted = False
        """True until it is taken."""
        self._start = start
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            async with self._start() as thing:
                self.ready.set_result(thing)
                await self._leave.wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)
            self.ready.exception()  # mark it as retrieved: the pool logs it if no task has asked for the member

    def has_failed(self) -> bool:
        return self.ready.done() and self.ready.exception() is not None

    async def end(self) -> None:
        self._leave.set()
        if not self.ready.done():
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)


class WarmPool(Generic[T]):
    """At most `size` members wait at a time, each for at most `ttl_s`, and always fewer than have been taken.

    `alive` tells whether a member that has waited can still be used. While `has_room` is False nothing is prestarted.
    The pool is a context, at whose end no member is left. The first member starts ahead when the second is taken.
    """

    def __init__(
        self,
        start: Callable[[], AbstractAsyncContextManager[T]],
        *,
        size: int,
        ttl_s: float = TTL_S,
        alive: Callable[[T], bool] = lambda thing: True,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._start = start
        self._size = size
        self._ttl_s = ttl_s
        self._alive = alive
        self._has_room = has_room
        self._max_starts = max(2, len(os.sched_getaffinity(0)))
        self._taken = 0
        self._failures = 0
        self._paused_until = 0.0
        self._waiting: deque[_Member[T]] = deque()
        self._ending: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> WarmPool[T]:
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._closed = True
        while self._waiting:
            self._discard(self._waiting.popleft())
        await asyncio.gather(*self._ending)

    async def wait_until_full(self) -> None:
        """Return when no member is being started: all are ready, or the pool pauses."""
        while starting := [member.ready for member in self._waiting if not member.ready.done()]:
            await asyncio.wait(starting)
            await asyncio.sleep(0)  # the next members start in a later turn of the loop

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[T]:
        """A member that is used this once. Raises the errors of its start."""
        member = self._pick()
        member.is_prestarted = False
        self._taken += 1
        self._refill()
        try:
            yield await asyncio.shield(member.ready)
        finally:
            await member.end()

    def _pick(self) -> _Member[T]:
        while self._waiting:
            member = self._waiting.popleft()
            if not member.ready.done() or (not member.has_failed() and self._alive(member.ready.result())):
                return member
            self._discard(member)
        return _Member(self._start)

    def _refill(self) -> None:
        loop = asyncio.get_running_loop()
        while (
            not self._closed
            and len(self._waiting) < min(self._size, self._taken - 1)
            and sum(not member.ready.done() for member in self._waiting) < self._max_starts
            and loop.time() >= self._paused_until
            and self._has_room()
        ):
            member = _Member(self._start)
            member.is_prestarted = True
            member.ready.add_done_callback(partial(self._note_start, member))
            self._waiting.append(member)
            loop.call_later(self._ttl_s, self._expire, member)

    def _note_start(self, member: _Member[T], ready: asyncio.Future[T]) -> None:
        """Refill the pool after a start; begin a pause after a failed one."""
        if ready.cancelled():
            return
        if (error := ready.exception()) is None:
            self._failures = 0
            self._refill()
            return
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, MAX_PAUSE_S)
        self._failures += 1
        self._paused_until = asyncio.get_running_loop().time() + pause_s
        if member in self._waiting:
            self._waiting.remove(member)
            self._discard(member)
        if member.is_prestarted:  # otherwise the task that took it gets the error
            log.warning("no server is started ahead for %g s, because one failed: %s", pause_s, error)

    def _expire(self, member: _Member[T]) -> None:
        if member in self._waiting:
            self._waiting.remove(member)
            self._discard(member)

    def _discard(self, member: _Member[T]) -> None:
        task = asyncio.create_task(member.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
