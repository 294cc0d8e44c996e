"""Code of the user that can be ended: it may hold up the event loop, or swallow a cancellation."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import dataclass
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
        with _handle_alarms():
            while True:
                try:
                    awaited = _run(step, self._limit_s)
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


def run_interruptible(work: Callable[[], T], limit_s: float) -> T:
    """Result of the function. It is interrupted with `LoopHeldUp` after `limit_s` seconds, in the main thread only."""
    with _handle_alarms():
        return _run(work, limit_s)


@dataclass(slots=True)
class _Alarms:
    """State of the handler of SIGALRM, which is installed while any work is interruptible: to install it takes long."""

    users: int = 0
    before: Any = signal.SIG_DFL
    limit_s: float = 0.0


_alarms = _Alarms()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise LoopHeldUp(f"{_alarms.limit_s:g} s")


@contextlib.contextmanager
def _handle_alarms() -> Iterator[None]:
    """Let `_interrupt` handle alarms inside the block, if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _alarms.users == 0:
        _alarms.before = signal.signal(signal.SIGALRM, _interrupt)
    _alarms.users += 1
    try:
        yield
    finally:
        _alarms.users -= 1
        if _alarms.users == 0:
            signal.signal(signal.SIGALRM, _alarms.before)


def _run(step: Callable[[], T], limit_s: float) -> T:
    """Result of the step, under an alarm after `limit_s` seconds if this is the main thread."""
    if threading.current_thread() is not threading.main_thread():
        return step()
    _alarms.limit_s = limit_s
    try:
        signal.setitimer(signal.ITIMER_REAL, limit_s, _REPEAT_S)
        return step()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
