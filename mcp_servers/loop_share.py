"""Time on the event loop that all episodes of a process share: fair deadlines, and one server's share of the time."""

from __future__ import annotations

import asyncio
import contextlib
import types
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Hashable, Iterator
from functools import partial
from time import monotonic, thread_time
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

SLICE_S = 0.25
"""Seconds that a deadline counts at a time. While the loop is blocked, it counts one slice at most."""
LATE_S = 0.1
"""Seconds by which a timer may be late. If it is later, an answer may have come that is not read yet."""
MAX_CLOCK_FACTOR = 10
"""Most clock time that a deadline may take, as a multiple of its seconds. A loop that is late so long is at fault."""
BURST_S = 0.2
"""Seconds of the loop's time that one server may use at once."""
GRANT_S = 0.001
"""Seconds of the loop's time that each of our requests adds to the server's budget: the time for a small answer."""
OPENING_S = 0.003
"""Seconds of the loop's time that a session takes in tasks of the SDK and of the sandbox, which are not measured."""
START_S = 0.02
"""Seconds of processor time that a start takes outside of the loop; charged for a session whose server is lost."""
OPENING_GRANT_S = START_S + 0.018
"""Seconds that a session adds to the budget at its end, for its start, unless its server is lost."""
SHARE = 0.05
"""Share of the loop's time that one server may use once its burst is spent."""
MIN_PAUSE_S = 0.05
"""Least seconds to wait for a server that has used up its budget: the wait itself takes time of the loop, too."""
_READ_S, _READ_S_PER_BYTE = 50e-6, 5e-9
"""Seconds of the loop's time for asyncio to receive a piece of output, and per byte of it."""
MAX_KEPT = 4096
"""Episodes whose server's budget is kept for its next session, until it is full again."""
P = ParamSpec("P")
T = TypeVar("T")


class LateLoop(TimeoutError):
    """The loop was late for too long: it is not known that the other process took more than its time."""


class Deadline:
    """Like `asyncio.timeout`, for the answer of another process: only time in which this loop was punctual counts.

    A blocked loop reads no answers, so that time must not be held against the other process. Raises TimeoutError if the
    other process took too long, and LateLoop if `MAX_CLOCK_FACTOR` of its time have passed and too little of it counts.
    """

    __slots__ = ("_due", "_latest", "_left_s", "_loop", "_scope", "_slice_s", "_timer", "_was_late")

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._was_late = False
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> Deadline:
        self._loop = asyncio.get_running_loop()
        self._latest = self._loop.time() + MAX_CLOCK_FACTOR * self._left_s
        await self._scope.__aenter__()
        self._count_on()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc_val: BaseException | None, exc_tb: TracebackType | None
    ) -> None:
        self._timer.cancel()
        try:
            await self._scope.__aexit__(exc_type, exc_val, exc_tb)
        except TimeoutError as error:
            if self._was_late:
                raise LateLoop("the event loop was late") from error
            raise

    def _count_on(self) -> None:
        self._slice_s = min(self._left_s, SLICE_S)
        self._due = self._loop.time() + self._slice_s
        self._timer = self._loop.call_at(self._due, self._count)

    def _count(self) -> None:
        now = self._loop.time()
        self._left_s -= self._slice_s
        if now - self._due > LATE_S:  # an answer may have come meanwhile that is not read yet
            self._left_s = max(self._left_s, SLICE_S)
        if self._left_s > 0 and now < self._latest:
            self._count_on()
        else:
            self._was_late = self._left_s > 0
            self._scope.reschedule(now)


class LoopShare:
    """Budget of loop time for one server in one episode: a burst, then a share, and a little for each request.

    A server that has used more than its budget must wait (`owed_s`). The time is CPU time of the loop's thread, so a
    busy machine costs a server nothing. What is done for the server is measured (`charge_steps`, `charge_elapsed`,
    `charge_thread`), or else estimated (`charge`). A server that loses its sessions pays for their starts, too.
    """

    __slots__ = ("_at", "_is_measured", "_left_s")

    def __init__(self, burst_s: float = BURST_S) -> None:
        self._left_s = burst_s
        self._at = monotonic()
        self._is_measured = False

    @property
    def is_full(self) -> bool:
        """True if the server has its whole burst."""
        return self._refill() >= BURST_S

    def charge(self, seconds: float) -> None:
        self._left_s -= seconds

    def charge_read(self, size: int) -> None:
        """Charge what it takes to receive a piece of output of `size` bytes."""
        self.charge(_READ_S + size * _READ_S_PER_BYTE)

    def grant(self, seconds: float = GRANT_S) -> None:
        """Add time for what the harness itself asks for: a request, by default."""
        self._left_s = min(BURST_S, self._left_s + seconds)

    @contextlib.contextmanager
    def charge_elapsed(self) -> Iterator[None]:
        """Charge the CPU time of the body, which must not await anything. Inside of another body it is charged once."""
        began = self.start_measuring()
        try:
            yield
        finally:
            self.stop_measuring(began)

    def start_measuring(self) -> float | None:
        """The CPU time now, for `stop_measuring`; None if it is measured already."""
        if self._is_measured:
            return None
        self._is_measured = True
        return thread_time()

    def stop_measuring(self, began: float | None) -> None:
        if began is not None:
            self.charge(thread_time() - began)
            self._is_measured = False

    def owed_s(self) -> float:
        """Seconds to wait before more output of the server is read; 0 if it has budget left."""
        if self._left_s >= 0 or (left_s := self._refill()) >= 0:
            return 0.0
        return max(MIN_PAUSE_S, -left_s / SHARE)

    def _refill(self) -> float:
        now = monotonic()
        self._left_s = min(BURST_S, self._left_s + SHARE * (now - self._at))
        self._at = now
        return self._left_s


@types.coroutine
def charge_steps(share: LoopShare, work: Coroutine[Any, Any, T]) -> Generator[Any, Any, T]:
    """Result of the coroutine. Charges the CPU time between its waits, in which other tasks run."""
    resume: Callable[[], Any] = partial(work.send, None)
    while True:
        began = share.start_measuring()
        try:
            waited_for = resume()
        except StopIteration as end:
            result: T = end.value
            return result
        finally:
            share.stop_measuring(began)
        try:
            resume = partial(work.send, (yield waited_for))
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:  # thrown in by the task, such as its cancellation
            resume = partial(work.throw, error)


async def charge_turns(share: LoopShare, steps: Generator[None, None, T]) -> T:
    """Result of the steps, with a turn for other tasks between two of them. Charges their CPU time.

    A server that has used more than its budget waits for the next step.
    """
    while True:
        with share.charge_elapsed():
            try:
                next(steps)
            except StopIteration as end:
                result: T = end.value
                return result
        await asyncio.sleep(share.owed_s())


async def charge_thread(share: LoopShare, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Result of the function, run in a thread. Charges its CPU time, in which the loop is without the interpreter."""
    spent_s = 0.0

    def run() -> T:
        nonlocal spent_s
        began = thread_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent_s = thread_time() - began

    try:
        return await asyncio.to_thread(run)
    finally:
        share.charge(spent_s)


_kept: OrderedDict[Hashable, LoopShare] = OrderedDict()
"""Shares of sessions that have ended, by the episode's server, those that ended last at the end."""


@contextlib.asynccontextmanager
async def resume_share(episode: Hashable) -> AsyncIterator[LoopShare]:
    """The share of an episode's server, once it owes nothing.

    It goes on with what the last session there has left, so a server gets no second burst by losing its connection.
    """
    share = _kept.pop(episode, None) or LoopShare()
    try:
        if wait_s := share.owed_s():
            await asyncio.sleep(wait_s)
        yield share
    finally:
        _kept.pop(episode, None)
        if not share.is_full:
            _kept[episode] = share
        while len(_kept) > MAX_KEPT or (_kept and next(iter(_kept.values())).is_full):
            _kept.popitem(last=False)
