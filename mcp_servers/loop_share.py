"""Time on the event loop that all episodes of a process share: deadlines that do not count a late loop, and shares."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Iterator
from types import TracebackType

SLICE_S = 0.25
"""Seconds that a deadline counts at a time; of a loop that stands still it counts no more."""
LATE_S = 0.1
"""Seconds by which a timer may be late before an answer that has come is taken for unread."""
LONGEST = 10
"""Times its seconds that a deadline may take by the clock, however late the loop is."""
BURST_S = 0.2
"""Seconds of the loop's time that one server may take at once."""
GRANT_S = 0.001
"""Seconds of it that each request of ours brings: what an answer takes that is not large."""
SHARE = 0.05
"""Part of the loop's time that one server may take after that."""


class Deadline:
    """As `asyncio.timeout`, for the answer of another process: only time in which this loop was punctual counts.

    While a loop stands still it hears no answer, and nobody but the loop is to blame for that. Raises TimeoutError.
    """

    __slots__ = ("_due", "_latest", "_left_s", "_loop", "_scope", "_slice_s", "_timer")

    def __init__(self, seconds: float) -> None:
        self._left_s = seconds
        self._scope = asyncio.timeout(None)

    async def __aenter__(self) -> Deadline:
        self._loop = asyncio.get_running_loop()
        self._latest = self._loop.time() + LONGEST * self._left_s
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
        elif now - self._due > LATE_S:  # an answer that came meanwhile is yet to be read
            self._left_s = max(self._left_s, SLICE_S)
        if self._left_s > 0:
            self._count_on()
        else:
            self._scope.reschedule(now)


class LoopShare:
    """Loop time of one server: a burst, then a share, and a little for each request. More is owed, and waited for.

    Counted in CPU time of the loop's thread, so a busy machine does not count.
    """

    __slots__ = ("_at", "_left_s")

    def __init__(self, burst_s: float = BURST_S) -> None:
        self._left_s = burst_s
        self._at = time.monotonic()

    def charge(self, seconds: float) -> None:
        self._left_s -= seconds

    def grant(self) -> None:
        """A request is sent, whose answer is wanted."""
        self._left_s = min(BURST_S, self._left_s + GRANT_S)

    @contextlib.contextmanager
    def charged(self, times: float = 1.0) -> Iterator[None]:
        """Charges what is done in the context, which must not wait, so many times."""
        began = time.thread_time()
        try:
            yield
        finally:
            self._left_s -= times * (time.thread_time() - began)

    def owed_s(self) -> float:
        """Seconds to wait before more is taken; 0: none."""
        if self._left_s >= 0:
            return 0.0
        now = time.monotonic()
        self._left_s = min(BURST_S, self._left_s + SHARE * (now - self._at))
        self._at = now
        return max(0.0, -self._left_s / SHARE)
