"""Rate of an action that some workers repeat at the same time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

WORKERS = 16
"""Number of workers, and so of resets at the same time."""
UNIT = f"resets/s @{WORKERS}"


async def measure_rate(act: Callable[[], Awaitable[object]], count: int) -> float:
    """Actions a second of `WORKERS` workers that do `count` together."""
    remaining = iter(range(count))

    async def work() -> None:
        for _ in remaining:
            await act()

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(WORKERS)))
    return count / (time.perf_counter() - begin)
