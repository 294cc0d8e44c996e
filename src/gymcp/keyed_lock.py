"""What several episodes need at the same time is made by the first of them, while the others wait."""

from __future__ import annotations

import asyncio
from weakref import WeakKeyDictionary, WeakValueDictionary

_locks: WeakKeyDictionary[asyncio.AbstractEventLoop, WeakValueDictionary[str, asyncio.Lock]] = WeakKeyDictionary()


def turn(key: str) -> asyncio.Lock:
    """To be held while the thing of that name is looked for, and made where it is not there; one per event loop."""
    of_loop = _locks.setdefault(asyncio.get_running_loop(), WeakValueDictionary())
    return of_loop.setdefault(key, asyncio.Lock())
