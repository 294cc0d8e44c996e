"""Time on the event loop that all episodes of a process share: fair deadlines, and one server's share of the time."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from types import TracebackType

SLICE_S = 0.25
"""Seconds that a deadline counts at a time. While the loop is blocked, it counts one slice at most."""
LATE_S = 0.1
"""Seconds by which a timer may be late. If it is later, an answer may have come that is not read yet."""
MAX_CLOCK_FACTOR = 10
"""Most clock time that a deadline may take, as a multiple of its seconds, however late the loop is."""
BURST_S = 0.2
"""Seconds of the loop's time that one server may use at once."""
GRANT_S = 0.001
"""Seconds of the loop's time that each of our requests adds to the server's budget: the time for a small answer."""
SHARE = 0.05
"""Share of the loop's time that one server may use once its burst is spent."""


class Deadline:
    """Like `asyncio.timeout`, for the answer of another process: only time in which this loop was punctual counts.

    A blocked loop reads no answers, so that time must not be held against the other process. Raises TimeoutError.
    """

    __slots__ = ("_due", "_latest", "_left_s", "_loop", "_scope", "_slice_s", "_timer")

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
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
        await self._scope.__aexit__(exc_type, exc_val, exc_tb)

    def _count_on(self) -> None:
        self._slice_s = min(self._left_s, SLICE_S)
        self._due = self._loop.time() + self._slice_s
        self._timer = self._loop.call_at(self._due, self._count)

    def _count(self) -> None:
        now = self._loop.time()
        self._left_s -= self._slice_s
        if now >= self._latest:
            self._left_s = 0.0
        elif now - self._due > LATE_S:  # an answer may have come meanwhile that is not read yet
            self._left_s = max(self._left_s, SLICE_S)
        if self._left_s > 0:
            self._count_on()
        else:
            self._scope.reschedule(now)


class LoopShare:
    """Budget of loop time for one server: a burst, then a share, and a little for each request.

    A server that has used more than its budget must wait (`owed_s`). The time is CPU time of the loop's thread, so a
    busy machine costs a server nothing.
    """

    __slots__ = ("_at", "_left_s")

    def __init__(self, burst_s: float = BURST_S) -> None:
        self._left_s = burst_s
        self._at = time.monotonic()

    def charge(self, seconds: float) -> None:
        self._left_s -= seconds

    def grant(self) -> None:
        """Add the time for an answer, because a request is sent."""
        self._left_s = min(BURST_S, self._left_s + GRANT_S)

    @contextlib.contextmanager
    def charge_elapsed(self, factor: float = 1.0) -> Iterator[None]:
        """Charge the CPU time of the body, multiplied by `factor`. The body must not await anything."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._left_s -= factor * (time.thread_time() - began)

    def owed_s(self) -> float:
        """Seconds to wait before more output of the server is read; 0 if it has budget left."""
        if self._left_s >= 0:
            return 0.0
        now = time.monotonic()
        self._left_s = min(BURST_S, self._left_s + SHARE * (now - self._at))
        self._at = now
        return max(0.0, -self._left_s / SHARE)
