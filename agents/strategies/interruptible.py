"""Code of the user that can be ended: it may hold up the event loop, or swallow a cancellation."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Coroutine, Generator, Iterator
from functools import partial
from types import FrameType
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_REPEAT_S = 1.0
"""Seconds after which code that has swallowed an interruption is interrupted again."""


class LoopHeldUp(BaseException):
    """Code held up the event loop. No `Exception`, so that ``except Exception`` in that code does not swallow it."""


class Interruptible(Generic[T]):
    """An awaitable over a coroutine.

    The coroutine is interrupted with `LoopHeldUp` if it runs for more than `limit_s` seconds without waiting for
    anything, because all other episodes wait as long. That takes a signal, so it works in the main thread only.
    """

    def __init__(self, work: Coroutine[Any, Any, T], limit_s: float) -> None:
        self._work = work
        self._limit_s = limit_s
        self._dropped = False

    def drop(self) -> None:
        """Do not run the coroutine any further, whatever it does with the cancellation that comes next."""
        self._dropped = True

    def __await__(self) -> Generator[Any, Any, T]:
        step = partial(self._work.send, None)
        while True:
            try:
                with interrupt_after(self._limit_s):
                    awaited = step()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                yield awaited
            except BaseException as error:
                if self._dropped:
                    with contextlib.suppress(BaseException):
                        self._work.close()
                    raise
                step = partial(self._work.throw, error)
            else:
                step = partial(self._work.send, None)


@contextlib.contextmanager
def interrupt_after(seconds: float) -> Iterator[None]:
    """Raise `LoopHeldUp` inside the block, and again while it goes on, once it takes longer. Main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise LoopHeldUp(f"{seconds:g} s")

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_S)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    finally:
        signal.signal(signal.SIGALRM, before)
