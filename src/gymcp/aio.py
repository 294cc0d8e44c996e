"""Asynchronous building blocks: contexts in tasks of their own, locks by key, an event loop in a background thread."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import math
import os
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakValueDictionary

T = TypeVar("T")
A = TypeVar("A")

_deadline: ContextVar[float] = ContextVar("gymcp_deadline", default=math.inf)
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


@contextlib.asynccontextmanager
async def limit_wait(seconds: float | None) -> AsyncIterator[asyncio.Timeout]:
    """Like `asyncio.timeout`, and what runs inside can `find_deadline`. Raises TimeoutError."""
    async with asyncio.timeout(seconds) as scope:
        when = scope.when()
        with share_deadline(math.inf if when is None else when):
            yield scope


@contextlib.contextmanager
def share_deadline(when: float) -> Iterator[None]:
    """Tell the block, and tasks that it starts, that its result is of no use after this time of the event loop."""
    token = _deadline.set(min(when, _deadline.get()))
    try:
        yield
    finally:
        _deadline.reset(token)


def find_deadline() -> float:
    """Time of the event loop at which the first enclosing `limit_wait` ends; infinity: none does."""
    return _deadline.get()


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


class LoopEnded(Exception):
    """The event loop of a `RunnerThread` ended before it answered."""


class RunnerThread(Generic[T]):
    """An event loop in a daemon thread: opens a value, then runs a coroutine to its end.

    Its methods may be called from any other thread.
    """

    def __init__(
        self,
        name: str,
        open_value: Callable[[asyncio.Runner], AbstractContextManager[T]],
        live: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """`name`: of the thread. `live`: makes the coroutine, while the value is open."""
        self._open_value = open_value
        self._live = live
        self._opened: Future[tuple[asyncio.AbstractEventLoop, T]] = Future()
        self._ended: Future[None] = Future()
        # a daemon, because the interpreter waits for other threads before it calls what is registered with atexit
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    @property
    def is_open(self) -> bool:
        """True once the value has been opened, without waiting for it."""
        return self._opened.done() and self._opened.exception() is None

    def wait_until_open(self, timeout_s: float | None = None) -> T:
        """The value. Raises what opening it raises, TimeoutError."""
        return self._opened.result(timeout_s)[1]

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls the function on the loop soon. Raises what opening the value raises, RuntimeError if the loop ended."""
        self._opened.result()[0].call_soon_threadsafe(function, *args)

    def ask(self, make_question: Callable[[], Coroutine[Any, Any, A]]) -> A:
        """The result of a coroutine on the loop. Raises what ended the loop, LoopEnded if it ended without an error."""
        loop = self._opened.result()[0]
        question = make_question()
        try:
            answer = asyncio.run_coroutine_threadsafe(question, loop)
        except RuntimeError:  # the loop is closed
            question.close()
            self._ended.result()
            raise LoopEnded from None
        either: tuple[Future[Any], ...] = (answer, self._ended)
        wait(either, return_when=FIRST_COMPLETED)
        if answer.done() and not answer.cancelled():  # the end of the loop cancels it
            return answer.result()
        question.close()  # the loop may have ended before it began
        self._ended.result()
        raise LoopEnded

    def join(self, timeout_s: float | None = None) -> None:
        """Returns when the thread has ended, or once the time is over."""
        self._thread.join(timeout_s)

    def check(self) -> None:
        """Raises what ended the loop after the value was open, if an error did."""
        if self._ended.done():
            self._ended.result()

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner, self._open_value(runner) as value:
                self._opened.set_result((runner.get_loop(), value))
                runner.run(self._live())
        except BaseException as error:  # the boundary of the thread: callers get it
            (self._ended if self._opened.done() else self._opened).set_exception(error)
        finally:
            if not self._ended.done():
                self._ended.set_result(None)


class BackgroundLoop(Generic[T]):
    """An event loop in a daemon thread, with one resource that lives as long as the loop.

    Runs from its construction until `end`, or until the process ends. A fork of the process does not have it.
    """

    def __init__(self, name: str, resource: AbstractAsyncContextManager[T]) -> None:
        """`name`: of the thread. `resource`: entered when the loop starts, and left when it ends."""
        self._process = os.getpid()
        self._leave = asyncio.Event()
        self._thread = RunnerThread(name, lambda runner: hold_open(runner, resource), self._wait)
        atexit.register(self.end)

    @property
    def is_here(self) -> bool:
        """False in a fork of the process, which has none of its threads."""
        return self._process == os.getpid()

    @property
    def resource(self) -> T:
        """The resource; waits until it has been entered. Raises what entering it raises."""
        return self._thread.wait_until_open()

    def call(self, function: Callable[..., object], *args: Any) -> None:
        """Calls the function on the loop soon. Raises what entering the resource raises."""
        self._thread.call(function, *args)

    def end(self) -> None:
        """Leaves the resource, and returns when the loop has ended. Harmless in a fork and if the loop has ended.

        Raises what leaving the resource raises.
        """
        atexit.unregister(self.end)
        if not self.is_here or not self._thread.is_alive:
            return
        with contextlib.suppress(Exception):  # the resource could not be entered, or the loop has just ended
            self._thread.call(self._leave.set)
        self._thread.join()
        self._thread.check()

    async def _wait(self) -> None:
        await self._leave.wait()
