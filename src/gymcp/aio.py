"""Contexts that are entered and left in a task of their own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TypeVar

T = TypeVar("T")


@contextlib.asynccontextmanager
async def hosted(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Enters and leaves `context` in a task of its own.

    MCP sessions must end in the task in which they began, the last one first; forks end when they like.
    """
    opened: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    closing = asyncio.Event()

    async def live() -> None:
        try:
            async with context as value:
                opened.set_result(value)
                await closing.wait()
        except BaseException as error:
            if opened.done():
                raise
            opened.set_exception(error)

    task = asyncio.create_task(live())
    try:
        yield await asyncio.shield(opened)
    finally:
        closing.set()
        if not opened.done():
            task.cancel()
        await asyncio.wait([task])
        if opened.done() and not opened.cancelled():
            opened.exception()  # looked at: the caller may have left before it came
        if not task.cancelled():
            task.result()
