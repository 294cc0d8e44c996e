"""Waiting for processes and pipes on the event loop, without threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine


class ProcessEnd:
    """Another process, by a handle that cannot come to mean a third one; ``gone`` is done when it has ended."""

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        """`pidfd`: a handle that is at hand already, which is taken over."""
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[None] = loop.create_future()
        self.pid = pid
        self._fd = -1
        try:
            self._fd = os.pidfd_open(pid) if pidfd is None else pidfd
        except ProcessLookupError:
            self.gone.set_result(None)
        else:
            loop.add_reader(self._fd, self._on_end)

    def kill(self) -> None:
        """SIGKILL. In a fork bomb of a thousand, process 1 would wait seconds for its turn to die, so it goes first.

        That takes root; other users have RLIMIT_NPROC, which does not hold root.
        """
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(self.pid, os.SCHED_FIFO, os.sched_param(1))
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def _on_end(self) -> None:
        self.close()
        finish(self.gone)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def readable(fd: int, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, finish, ready)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(fd)


async def uninterrupted(work: Coroutine[None, None, None]) -> None:
    """Awaits to the end even when cancelled, and then says so."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
