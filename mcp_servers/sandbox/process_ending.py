"""The end of a server process: the limit that caused it, the tail of standard error, the cgroup's removal.

`HostProcess`, `ForkedProcess` and `ContainerProcess` have a `ProcessEnding` each, and know themselves how to kill and
when it has ended. That of a container has no cgroup: the engine counts there, and its standard error is complete only
once the container has been killed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gymcp.mcp_servers.loop_share import Deadline, LoopShare
from gymcp.mcp_servers.sandbox.cgroup import Cgroup
from gymcp.mcp_servers.sandbox.pidfd import set_done
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.watchdog import exceeded_limit, process_limit

_KILL_TIMEOUT_S = 10.0
_PIECE_S, _BYTE_S = 30e-6, 2e-9
"""Seconds of the event loop's time that a piece of standard error takes: per piece, and per byte."""

log = logging.getLogger(__name__)


class StderrTail(asyncio.Protocol):
    """Reads standard error to its end, no faster than its share of the loop's time allows, and keeps the tail."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._share = LoopShare()
        self._transport: asyncio.ReadTransport | None = None
        self.content = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport if isinstance(transport, asyncio.ReadTransport) else None

    def data_received(self, data: bytes) -> None:
        self.content += data
        if len(self.content) > self._size:
            del self.content[: -self._size]
        self._share.charge(_PIECE_S + len(data) * _BYTE_S)
        if self._transport is not None and (wait_s := self._share.owed_s()):
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        set_done(self.ended)


class ProcessEnding:
    """The reason for the end of one process, and the steps of an end that do not depend on the kind of process."""

    def __init__(self, limits: Limits, cgroup: Cgroup | None) -> None:
        self._cgroup = cgroup
        self.stderr = StderrTail(limits.stderr_bytes)
        self.limit: str | None = None
        """The limit that ended the process, in words; None if no limit did."""
        self.is_closing = False
        """True once the harness ends the process, so that what the cgroup counts from then on is no reason."""

    def stderr_tail(self) -> str:
        return self.stderr.content.decode(errors="replace")

    async def drain_stderr(self) -> None:
        """One turn of the event loop is enough: all that the server has written is in its pipe by then."""
        await asyncio.sleep(0)

    def record_limit(self, limit: str) -> None:
        """Remember the reason for the end. The first one stays."""
        if self.limit is None:
            self.limit = limit

    def find_limit(self, limits: Limits, *, count_forks: bool = True) -> None:
        """Ask the cgroup why the process has ended. `count_forks`: a refused fork can be the reason."""
        if self.is_closing or self.limit is not None or self._cgroup is None:
            return
        self.limit = exceeded_limit(self._cgroup, limits)
        if self.limit is None and count_forks and self._cgroup.count_refused_forks():
            self.limit = process_limit(limits)

    @asynccontextmanager
    async def limit_kill_time(self, who: str, pid: int) -> AsyncIterator[None]:
        """Time limit for the work in this context, which kills the process. After it the process is left behind.

        A late loop sees late that a process has ended, so it does not count.
        """
        try:
            async with Deadline(_KILL_TIMEOUT_S):
                yield
        except TimeoutError:
            log.error("%s: process %d does not end on SIGKILL; left behind", who, pid)

    async def remove_cgroup(self) -> None:
        if self._cgroup is not None:
            await self._cgroup.remove_when_empty()
