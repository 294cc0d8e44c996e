"""Asynchronous building blocks: contexts in tasks of their own, locks by key, an event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

T = TypeVar("T")

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, asyncio.Lock]] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def run_in_own_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enters and leaves `context` in a task of its own, so that any task may enter and leave this one.

    An MCP session must end in the task in which it began, and sessions of one task must end in reverse order; forks end
    in any order.
    """
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leave = asyncio.Event()

    async def live() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leave.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.create_task(live())
    try:
        yield await asyncio.shield(entered)
    finally:
        leave.set()
        if not entered.done():
            task.cancel()
        await asyncio.wait([task])
        if entered.done() and not entered.cancelled():
            entered.exception()  # retrieved, because the caller may have been cancelled before it was set
        if not task.cancelled():
            task.result()


class PausableTimeout:
    """Like `asyncio.timeout`, but its time stands still in the blocks of `pause`. Raises TimeoutError."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._scope = asyncio.timeout(seconds)

    async def __aenter__(self) -> PausableTimeout:
        await self._scope.__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        await self._scope.__aexit__(exc_type, exc_val, exc_tb)

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Stops the time during the block; a block inside another one changes nothing."""
        when = self._scope.when()
        if when is None or self._scope.expired():
            yield
            return
        loop = asyncio.get_running_loop()
        left_s = max(0.0, when - loop.time())
        self._scope.reschedule(None)
        try:
            yield
        finally:
            self._scope.reschedule(loop.time() + left_s)


@contextlib.contextmanager
def hold_open(runner: asyncio.Runner, context: AbstractAsyncContextManager[T]) -> Iterator[T]:
    """Enters `context` on the runner's event loop for the duration of a synchronous block."""
    stack = contextlib.AsyncExitStack()
    try:
        yield runner.run(stack.enter_async_context(run_in_own_task(context)))
    finally:
        runner.run(stack.aclose())


def keyed_lock(key: str) -> asyncio.Lock:
    """The lock of this name in the running event loop.

    Hold it while you look for a thing of that name and make it if it is missing: the first of several episodes makes
    the thing while the others wait.
    """
    locks = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return locks.setdefault(key, asyncio.Lock())


class BackgroundLoop(Generic[T]):
    """An event loop in a daemon thread, with one resource that lives as long as the loop.

    Runs from its construction until `end`, or until the process ends. A fork of the process does not have it.
    """

    def __init__(self, name: str, resource: AbstractAsyncContextManager[T]) -> None:
        """`name`: of the thread. `resource`: entered when the loop starts, and left when it ends."""
        self._process = os.getpid()
        self._entered: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, T]] = Future()
        # a daemon, because the interpreter waits for other threads before it calls what is registered with atexit
        self._thread = threading.Thread(target=self._run, args=(resource,), name=name, daemon=True)
        self._thread.start()
        atexit.register(self.end)

    @property
    def is_here(self) -> bool:
        """False in a fork of the process, which has none of its threads."""
        return self._process == os.getpid()

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The event loop; waits until it has started. Raises what entering the resource raises."""
        return self._entered.result()[0]

    @property
    def resource(self) -> T:
        """The resource; waits until it has been entered. Raises what entering it raises."""
        return self._entered.result()[2]

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls the function on the loop soon. Raises what entering the resource raises."""
        self.loop.call_soon_threadsafe(function, *args)

    def end(self) -> None:
        """Leaves the resource, and returns when the loop has ended. Harmless in a fork and if the loop has ended."""
        atexit.unregister(self.end)
        if not self.is_here or not self._thread.is_alive():
            return
        if self._entered.exception() is None:
            loop, leave, _ = self._entered.result()
            loop.call_soon_threadsafe(leave.set)
        self._thread.join()

    def _run(self, resource: AbstractAsyncContextManager[T]) -> None:
        try:
            asyncio.run(self._live(resource))
        except BaseException as error:
            if self._entered.done():
                raise
            self._entered.set_exception(error)

    async def _live(self, resource: AbstractAsyncContextManager[T]) -> None:
        leave = asyncio.Event()
        async with resource as value:
            self._entered.set_result((asyncio.get_running_loop(), leave, value))
            await leave.wait()
