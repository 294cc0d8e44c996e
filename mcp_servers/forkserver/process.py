"""The harness's side of a forked server: the `SandboxProcess` of a cell (see `spawner.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path

from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.sandbox.cgroup import Cgroup, create, usable_hierarchy
from gymcp.mcp_servers.sandbox.pidfd import ProcessEnd
from gymcp.mcp_servers.sandbox.process import StderrTail
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.users.ownership import give_pipes
from gymcp.mcp_servers.sandbox.watchdog import cpu_limit, memory_limit, process_limit, watchdog
from gymcp.process_owner import owner

UNKNOWN_STATUS = -1
"""Of a copy, whose process 1 nobody here could wait for."""
FIRST_PROCESSES = 1
"""Process 1 of a cell belongs to the sandbox."""
_MOVES = 20
"""Lists of processes that are read to move a copy to its cgroup; an honest one takes two."""
_END_TIMEOUT_S = 10.0
_STATUS_TIMEOUT_S = 4.0
"""For the spawner to tell it: less than a session waits for an end."""
log = logging.getLogger(__name__)
_numbers = itertools.count(1)


class Ends:
    """The descriptors of one cell that its server gets, closed here when they were sent."""

    def __init__(self, fds: tuple[int, ...], cgroup_fds: tuple[int, ...]) -> None:
        self.fds = fds
        """Wire, standard error, orders; of a script standard input, error, output."""
        self.cgroup_fds = cgroup_fds

    def close(self) -> None:
        """Harmless when they are closed."""
        for fd in (*self.fds, *self.cgroup_fds):
            os.close(fd)
        self.fds = self.cgroup_fds = ()

    def close_cgroups(self) -> None:
        """For a server that the harness moves itself."""
        for fd in self.cgroup_fds:
            os.close(fd)
        self.cgroup_fds = ()


Copy = Callable[["ForkedProcess", int], Awaitable[list["ForkedProcess"]]]


class ForkedProcess:
    """A server in a cell. Its end is known by process 1 of the cell, which the kernel takes everything else with."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def __init__(
        self,
        limits: Limits,
        copy: Copy | None,
        *,
        use_cgroup: bool,
        workspace: Path | None = None,
        is_script: bool = False,
    ) -> None:
        self._copy = copy
        self.limits = limits
        self.workspace = workspace
        self._is_script = is_script
        """Its standard input and output are two streams, and it takes no orders."""
        self.sandbox_processes = FIRST_PROCESSES
        self.pid = 0
        """Of process 1 of the cell, as the host counts."""
        self.returncode: int | None = None
        kind = socket.SOCK_STREAM if is_script else socket.SOCK_SEQPACKET
        self.orders, orders = socket.socketpair(socket.AF_UNIX, kind)
        self._wire, wire = socket.socketpair()
        self._errors, errors = os.pipe()
        if os.getuid() == 0:
            give_pipes(errors)
        self._first: ProcessEnd | None = None
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._tail = StderrTail(limits.stderr_bytes)
        self._tail_transport: asyncio.ReadTransport | None = None
        self._output: asyncio.StreamWriter | None = None
        self._limit: str | None = None
        self._closing = False
        self._closed: asyncio.Future[None] | None = None
        self._copies = 0
        self._origin: ForkedProcess | None = None
        hierarchy = usable_hierarchy() if use_cgroup else None
        name = f"gymcp-{owner()}-f{next(_numbers)}"
        self.cgroup: Cgroup | None = (
            create(hierarchy, name, limits, sandbox_processes=FIRST_PROCESSES) if hierarchy else None
        )
        joins = self.cgroup.join_files if self.cgroup else ()
        self.ends = Ends(
            fds=(wire.detach(), errors, orders.detach()),
            cgroup_fds=tuple(os.open(file, os.O_WRONLY | os.O_CLOEXEC) for file in joins),
        )

    @property
    def inside_pid(self) -> int | None:
        return self.pid

    async def open(self, pidfd: int, origin: ForkedProcess | None = None) -> None:
        """Connects to the server in the cell whose first process `pidfd` is; takes that over."""
        self.pid = _process_of(pidfd)
        self._first = ProcessEnd(self.pid, pidfd)
        self._first.gone.add_done_callback(self._on_end)
        self._origin = origin
        if origin is not None:
            origin._copies += 1
            self.ended(UNKNOWN_STATUS)
        limit = self.limits.line_bytes
        self.stdout, self.stdin = await asyncio.open_connection(sock=self._wire, limit=limit)
        if self._is_script:
            self.stdout, self._output = await asyncio.open_connection(sock=self.orders, limit=limit)
        loop = asyncio.get_running_loop()
        pipe = os.fdopen(self._errors, "rb", buffering=0)
        self._tail_transport, _ = await loop.connect_read_pipe(lambda: self._tail, pipe)
        watchdog().add(self)

    def take_in(self, origin: ForkedProcess) -> None:
        """Moves what has come into this cell from `origin`'s process out of its cgroup into the own one.

        Descriptors of the cgroup would let a hostile origin move itself there. Raises OSError.
        """
        if self.cgroup is not None and origin.cgroup is not None:
            place = str(Path(f"/proc/{self.pid}/ns/pid").readlink())
            for _ in range(_MOVES):  # what is started while the list is read is in it the next time
                if not self.cgroup.take(pid for pid in origin.cgroup.processes() if _pid_namespace(pid) == place):
                    return
            raise ChildProcessError("what is started in a copy cannot all be moved to its cgroup")

    def ended(self, status: int) -> None:
        """Told by whoever could wait for it."""
        if not self._status.done():
            self._status.set_result(status)

    async def wait(self) -> int:
        assert self._first is not None
        await asyncio.shield(self._first.gone)
        self._on_end(self._first.gone)  # where it had ended before, its callback may be yet to come
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                self.returncode = await asyncio.shield(self._status)
        return UNKNOWN_STATUS if self.returncode is None else self.returncode

    def stderr_tail(self) -> str:
        return self._tail.content.decode(errors="replace")

    async def drain_stderr(self) -> None:
        """In the next turn of the loop: what a server has written is in its pipe."""
        await asyncio.sleep(0)

    def limit_hit(self) -> str | None:
        return self._limit

    def end(self, limit: str) -> None:
        if self._limit is None and not self._closing:
            self._limit = limit
        self._kill()

    def _kill(self) -> None:
        if self._first is not None:
            self._first.kill()

    def _on_end(self, _: asyncio.Future[None]) -> None:
        if self._closing or self._limit is not None or self.cgroup is None:
            return
        if self.cgroup.oom_kills():
            self._limit = memory_limit(self.limits)
        elif (self.cgroup.cpu_s() or 0.0) > self.limits.cpu_s:
            self._limit = cpu_limit(self.limits)
        elif self.cgroup.count_refused_forks():
            self._limit = process_limit(self.limits)

    async def close(self) -> None:
        """Ends the cell, or, while copies of its server live in it, only the server. Harmless the second time."""
        if self._closed is None:
            self._closed = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        self._closing = True
        watchdog().remove(self)
        if self._tail_transport is not None:
            self.stdin.transport.abort()
            self._tail_transport.close()
        else:
            self._wire.close()
            os.close(self._errors)
        if self._output is not None:
            self._output.transport.abort()
        else:
            self.orders.close()
        await asyncio.sleep(0)  # a transport closes its descriptor in the next turn of the loop
        if self._copies == 0:
            await self._end_cell()

    async def _end_cell(self) -> None:
        if self._first is not None:
            self._first.kill()
            try:
                async with asyncio.timeout(_END_TIMEOUT_S):
                    await self._first.gone
            except TimeoutError:
                log.error("forked server: process %d does not end on SIGKILL; left behind", self.pid)
            self._first.close()
        if self.cgroup is not None:
            await self.cgroup.remove_when_empty()
        origin = self._origin
        if origin is not None:
            origin._copies -= 1
            if origin._copies == 0 and origin._closing:
                await origin._end_cell()

    async def fork(self, count: int) -> list[ForkedProcess]:
        """Copies of the server as it is between two calls, each in a cell of its own; the caller closes them.

        Raises CannotFork where it is not fit for that.
        """
        if self._copy is None:
            raise CannotFork(
                f"server of process {self.pid}: only native servers can be copied; replay its calls instead"
            )
        return await self._copy(self, count)


def _pid_namespace(pid: int) -> str:
    """Empty for a process that has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _process_of(pidfd: int) -> int:
    """-1 where it has been waited for. Raises ServerDied, closing it, where it is no handle of a process."""
    fd = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(fd, 4096).split(b"\n")
    finally:
        os.close(fd)
    found = next((int(line[4:]) for line in lines if line.startswith(b"Pid:")), None)
    if found is None:
        os.close(pidfd)
        raise ServerDied("forked server: its template handed over something that is no process")
    return found
