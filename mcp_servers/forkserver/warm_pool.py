"""Warm spares of anything slow to start: started ahead of use, handed out once, ended after.

Valid only where a start does not depend on the task: what makes one episode differ from another comes later, over the
wire (`gymcp/setup`), never as an argument, a variable or a folder. `Launch` says all that a start depends on, so equal
launches without a host folder are interchangeable until something is sent to them. A spare gives no CPU time back: it
pays where starting means waiting, or where the machine idles while a model thinks. So only a few start at a time, which
leaves the machine to the episodes; and what does not start is not started again and again.
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
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0
"""Without spares after one has failed to start, twice as long after each further one."""

log = logging.getLogger(__name__)


class _Spare(Generic[T]):
    """One thing, opened and closed by a task of its own, whoever uses it between."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.ahead = False
        """True while nobody has asked for it."""
        self._start = start
        self._leave = asyncio.Event()
        self._task = asyncio.create_task(self._live())

    async def _live(self) -> None:
        try:
            async with self._start() as thing:
                self.ready.set_result(thing)
                await self._leave.wait()
        except Exception as error:
            if self.ready.done():
                raise
            self.ready.set_exception(error)
            self.ready.exception()  # seen: the pool says so where nobody asks for it

    def failed(self) -> bool:
        return self.ready.done() and self.ready.exception() is not None

    async def end(self) -> None:
        self._leave.set()
        if not self.ready.done():
            self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.shield(self._task)


class WarmPool(Generic[T]):
    """At most `spares` wait at a time, each at most `ttl_s`; `alive` says whether one that waited can still be used.

    None is started ahead while `has_room` says that the machine is full. A context: at its end no spare is left. The
    first are started when the first one is taken.
    """

    def __init__(
        self,
        start: Callable[[], AbstractAsyncContextManager[T]],
        *,
        spares: int,
        ttl_s: float = TTL_S,
        alive: Callable[[T], bool] = lambda thing: True,
        has_room: Callable[[], bool] = lambda: True,
    ) -> None:
        self._start = start
        self._spares = spares
        self._ttl_s = ttl_s
        self._alive = alive
        self._has_room = has_room
        self._at_once = max(2, len(os.sched_getaffinity(0)))
        self._failures = 0
        self._paused_until = 0.0
        self._waiting: deque[_Spare[T]] = deque()
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
        """Returns when no spare is being started: all are ready, or there is a pause."""
        while starting := [spare.ready for spare in self._waiting if not spare.ready.done()]:
            await asyncio.wait(starting)
            await asyncio.sleep(0)  # what comes next is started when the loop gets to it

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[T]:
        """One that nobody used before, and nobody will after. Raises what starting it raises."""
        spare = self._pick()
        spare.ahead = False
        self._refill()
        try:
            yield await asyncio.shield(spare.ready)
        finally:
            await spare.end()

    def _pick(self) -> _Spare[T]:
        while self._waiting:
            spare = self._waiting.popleft()
            if not spare.ready.done() or (not spare.failed() and self._alive(spare.ready.result())):
                return spare
            self._discard(spare)
        return _Spare(self._start)

    def _refill(self) -> None:
        loop = asyncio.get_running_loop()
        while (
            not self._closed
            and len(self._waiting) < self._spares
            and sum(not spare.ready.done() for spare in self._waiting) < self._at_once
            and loop.time() >= self._paused_until
            and self._has_room()
        ):
            spare = _Spare(self._start)
            spare.ahead = True
            spare.ready.add_done_callback(partial(self._note, spare))
            self._waiting.append(spare)
            loop.call_later(self._ttl_s, self._expire, spare)

    def _note(self, spare: _Spare[T], ready: asyncio.Future[T]) -> None:
        """A start has ended well, or there is a pause."""
        if ready.cancelled():
            return
        if (error := ready.exception()) is None:
            self._failures = 0
            self._refill()
            return
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S)
        self._failures += 1
        self._paused_until = asyncio.get_running_loop().time() + pause_s
        if spare in self._waiting:
            self._waiting.remove(spare)
            self._discard(spare)
        if spare.ahead:  # else it reaches who asked
            log.warning("no spare is started for %g s, because one failed: %s", pause_s, error)

    def _expire(self, spare: _Spare[T]) -> None:
        if spare in self._waiting:
            self._waiting.remove(spare)
            self._discard(spare)

    def _discard(self, spare: _Spare[T]) -> None:
        task = asyncio.create_task(spare.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
