"""Warm spares of anything slow to start: started ahead of use, handed out once, ended after.

Valid only where a start does not depend on the task: what makes one episode differ from another comes later, over the
wire (`gymcp/setup`), never as an argument, a variable or a folder. `Launch` says all that a start depends on, so equal
launches without a host folder are interchangeable until something is sent to them. A spare gives no CPU time back: it
pays where starting means waiting, or where the machine idles while a model thinks.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")
TTL_S = 300.0

log = logging.getLogger(__name__)


class _Spare(Generic[T]):
    """One thing, opened and closed by a task of its own, whoever uses it between."""

    def __init__(self, start: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        self.ready: asyncio.Future[T] = asyncio.get_running_loop().create_future()
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
            self.ready.exception()  # seen: a spare that nobody asks for may fail in silence

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

    A context: at its end no spare is left. The first are started when the first one is taken.
    """

    def __init__(
        self,
        start: Callable[[], AbstractAsyncContextManager[T]],
        *,
        spares: int,
        ttl_s: float = TTL_S,
        alive: Callable[[T], bool] = lambda thing: True,
    ) -> None:
        self._start = start
        self._spares = spares
        self._ttl_s = ttl_s
        self._alive = alive
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

    async def filled(self) -> None:
        """Returns when every spare is ready. Raises what starting them raises."""
        for spare in list(self._waiting):
            await asyncio.shield(spare.ready)

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[T]:
        """One that nobody used before, and nobody will after. Raises what starting it raises."""
        spare = self._pick()
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
        while not self._closed and len(self._waiting) < self._spares:
            spare = _Spare(self._start)
            self._waiting.append(spare)
            asyncio.get_running_loop().call_later(self._ttl_s, self._expire, spare)

    def _expire(self, spare: _Spare[T]) -> None:
        if spare in self._waiting:
            self._waiting.remove(spare)
            self._discard(spare)

    def _discard(self, spare: _Spare[T]) -> None:
        task = asyncio.create_task(spare.end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
