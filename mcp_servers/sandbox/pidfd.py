"""Waits for processes and pipes on the event loop, without threads."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Coroutine


class ProcessEnd:
    """Another process by its pidfd, which, unlike a process id, is never reused. ``gone`` is done when it has ended."""

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        """`pidfd`: a descriptor that the caller has already; this object takes it over and closes it."""
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
        """Send SIGKILL, with real-time priority if possible.

        Beside a fork bomb of a thousand processes, process 1 would otherwise wait seconds for its turn to die. The
        priority takes root; other users have RLIMIT_NPROC instead, which does not hold root.
        """
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.sched_setscheduler(self.pid, os.SCHED_FIFO, os.sched_param(1))
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._fd, signal.SIGKILL)

    def _on_end(self) -> None:
        self.close()
        set_done(self.gone)

    def close(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1


def set_done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def wait_readable(fd: int, timeout_s: float) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()
    loop.add_reader(fd, set_done, ready)
    try:
        async with asyncio.timeout(timeout_s):
            await ready
    finally:
        loop.remove_reader(fd)


async def run_despite_cancellation(work: Coroutine[None, None, None]) -> None:
    """Await the work to its end even if this task is cancelled meanwhile, and raise CancelledError afterwards."""
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
