"""The harness's side of a forked server: the `SandboxProcess` of an inner sandbox (see `spawner.py`)."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

from gymcp.errors import CannotFork, ServerDied
from gymcp.mcp_servers.forkserver.channel import Channel
from gymcp.mcp_servers.forkserver.program_kinds import ProgramKind
from gymcp.mcp_servers.forkserver.spawner import CopyFiles, FilesCopied, ServerFds
from gymcp.mcp_servers.sandbox.cgroup import Cgroup, create, find_own_folder, prepare_moves, usable_hierarchy
from gymcp.mcp_servers.sandbox.pidfd import ProcessEnd
from gymcp.mcp_servers.sandbox.process_ending import ProcessEnding
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.users.ownership import give_pipes
from gymcp.mcp_servers.sandbox.watchdog import watchdog
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.process_owner import owner

UNKNOWN_STATUS = -1
"""Exit status of a copy: process 1 of its sandbox is not the spawner's child, so it cannot wait for it."""
SANDBOX_PROCESSES = 1
"""Processes of an inner sandbox that are not the server's: process 1."""
_MAX_MOVES = 20
"""Lists of processes that are read to move a copy to its cgroup. An honest copy takes two."""
MAX_WHY_CHARS = 500
"""Characters of the reason of a server or a fork server in an error."""
_STATUS_TIMEOUT_S = 4.0
"""Seconds in which the spawner must report an exit status: less than a session waits for an end."""
_numbers = itertools.count(1)


class ServerEnds:
    """Descriptors for one server, which are closed here once they were sent to it."""

    def __init__(self, fds: ServerFds, cgroup_fds: tuple[int, ...]) -> None:
        self.fds = fds
        self.cgroup_fds = cgroup_fds
        self._is_closed = False

    def close(self) -> None:
        """Close all. Does nothing the second time."""
        if not self._is_closed:
            self._is_closed = True
            for fd in (*self.fds, *self.cgroup_fds):
                os.close(fd)

    def close_cgroups(self) -> None:
        """Close those of cgroups, for a copy, which the harness itself moves to its cgroup."""
        for fd in self.cgroup_fds:
            os.close(fd)
        self.cgroup_fds = ()


ServerCopier = Callable[["ForkedProcess", int], Awaitable[list["ForkedProcess"]]]
"""(live server, number of copies) -> copies."""
_PREPARE_AGAIN_S = 0.002
"""Seconds between two preparations of moves; the kernel forgets one after some milliseconds."""


class ForkedProcess:
    """A server in an inner sandbox. Its end is that of process 1, with which the kernel ends all others in there."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    forks_servers = False

    def __init__(
        self,
        limits: Limits,
        kind: ProgramKind,
        copy_server: ServerCopier,
        *,
        use_cgroup: bool,
        workspace: Path | None = None,
    ) -> None:
        """`copy_server`: used if servers of this kind can be copied."""
        self._kind = kind
        self._copy_server = copy_server
        self.limits = limits
        self.workspace = workspace
        self.sandbox_processes = SANDBOX_PROCESSES
        self.pid = 0
        """Process id of process 1, in the host's namespace."""
        self.returncode: int | None = None
        self.orders, orders = socket.socketpair(socket.AF_UNIX, kind.orders_type)
        self._wire, wire = socket.socketpair()
        read_errors, errors = os.pipe()
        self._errors = os.fdopen(read_errors, "rb", buffering=0)
        if os.getuid() == 0:
            give_pipes(errors)
        self._process_1: ProcessEnd | None = None
        self._status: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._connections = contextlib.ExitStack()
        for end in (self._wire, self.orders, self._errors):
            self._connections.callback(end.close)
        self._closed: asyncio.Future[None] | None = None
        self._copies = 0
        self._origin: ForkedProcess | None = None
        hierarchy = usable_hierarchy() if use_cgroup else None
        name = f"gymcp-{owner()}-f{next(_numbers)}"
        self.cgroup: Cgroup | None = (
            create(hierarchy, name, limits, sandbox_processes=SANDBOX_PROCESSES) if hierarchy else None
        )
        self._ending = ProcessEnding(limits, self.cgroup)
        joins = self.cgroup.join_files if self.cgroup else ()
        self.ends = ServerEnds(
            fds=ServerFds(wire=wire.detach(), errors=errors, orders=orders.detach()),
            cgroup_fds=tuple(os.open(file, os.O_WRONLY | os.O_CLOEXEC) for file in joins),
        )

    @property
    def inside_pid(self) -> int | None:
        return self.pid

    async def connect(self, pidfd: int, origin: ForkedProcess | None = None) -> None:
        """Connect to the server. `pidfd`: that of process 1, which is taken over. `origin`: the server it copies."""
        self.pid = _pid_of(pidfd)
        self._process_1 = ProcessEnd(self.pid, pidfd)
        self._process_1.gone.add_done_callback(self._on_end)
        self._origin = origin
        if origin is not None:
            origin._copies += 1
            self.set_status(UNKNOWN_STATUS)
        self.stdout, self.stdin = await self._kind.open_streams(
            self._wire, self.orders, self.limits.line_bytes, self._connections
        )
        tail, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: self._ending.stderr, self._errors)
        self._connections.callback(tail.close)
        watchdog().add(self)

    async def keep_moves_quick(self) -> None:
        """Until it is cancelled, have the kernel do in advance what the first of several moves to cgroups waits for."""
        own = await asyncio.to_thread(find_own_folder) if self.cgroup is not None else None
        while own is not None:
            await asyncio.to_thread(prepare_moves, own)
            await asyncio.sleep(_PREPARE_AGAIN_S)

    def _move_to_own_cgroup(self, origin: ForkedProcess) -> None:
        """Move the processes of this sandbox from `origin`'s cgroup, in which they were forked, to its own.

        The copy gets no descriptors of its cgroup, because a hostile origin could use them to move itself there. Raises
        OSError.
        """
        if self.cgroup is not None and origin.cgroup is not None:
            namespace = str(Path(f"/proc/{self.pid}/ns/pid").readlink())
            for _ in range(_MAX_MOVES):  # a process that starts while the list is read is in it the next time
                if not self.cgroup.take(pid for pid in origin.cgroup.processes() if _pid_namespace(pid) == namespace):
                    return
            raise ChildProcessError("a copy starts processes faster than they can be moved to its cgroup")

    async def copy_files(self) -> None:
        """Have a copy copy the files of its original. It is in its own cgroup by then, which counts them.

        The original must get no request until then. Raises CannotFork, OSError.
        """
        orders = Channel(self.orders)
        await orders.send(CopyFiles())
        answer = await orders.receive_alone()
        if not isinstance(answer, FilesCopied) or answer.refused:
            why = plain_text(str(answer.refused)) if isinstance(answer, FilesCopied) else "its files were not copied"
            raise CannotFork(f"copy of process {self.pid}: {why[:MAX_WHY_CHARS]}")

    def set_status(self, status: int) -> None:
        """Record the exit status, which only the parent of process 1 can wait for."""
        if not self._status.done():
            self._status.set_result(status)

    async def wait(self) -> int:
        assert self._process_1 is not None
        await asyncio.shield(self._process_1.gone)
        self._on_end(self._process_1.gone)  # if it had ended before, its callback may not have run yet
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_TIMEOUT_S):
                self.returncode = await asyncio.shield(self._status)
        return UNKNOWN_STATUS if self.returncode is None else self.returncode

    def stderr_tail(self) -> str:
        return self._ending.stderr_tail()

    async def drain_stderr(self) -> None:
        await self._ending.drain_stderr()

    def exceeded_limit(self) -> str | None:
        return self._ending.limit

    def end(self, limit: str) -> None:
        if not self._ending.is_closing:
            self._ending.record_limit(limit)
        if self._process_1 is not None:
            self._process_1.kill()

    def _on_end(self, _: asyncio.Future[None]) -> None:
        self._ending.find_limit(self.limits)

    async def close(self) -> None:
        """End the sandbox; while copies live in it, only the server. Does nothing the second time."""
        if self._closed is None:
            self._closed = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        self._ending.is_closing = True
        watchdog().remove(self)
        self._connections.close()
        if self._copies == 0:
            await self._end_sandbox()

    async def _end_sandbox(self) -> None:
        if self._process_1 is not None:
            self._process_1.kill()
            async with self._ending.limit_kill_time("forked server", self.pid):
                await self._process_1.gone
            self._process_1.close()
        await self._ending.remove_cgroup()
        origin = self._origin
        if origin is not None:
            origin._copies -= 1
            if origin._copies == 0 and origin._ending.is_closing:
                await origin._end_sandbox()

    async def fork(self, count: int) -> list[ForkedProcess]:
        """Copies of the server as it is between two calls, each in a sandbox of its own. The caller closes them.

        Raises CannotFork if the server cannot be copied.
        """
        if not self._kind.copyable:
            raise CannotFork(
                f"server of process {self.pid}: only native servers can be copied; replay its calls instead"
            )
        return await self._copy_server(self, count)


def move_to_own_cgroups(copies: Iterable[ForkedProcess], origin: ForkedProcess) -> None:
    """Move each copy from the control group of `origin`, in which it was forked. Raises OSError."""
    for copy in copies:
        copy._move_to_own_cgroup(origin)


def count_copies_apart(origin: ForkedProcess, copies: Iterable[ForkedProcess]) -> None:
    """Have the watchdog count the processes of each copy for the copy; without a cgroup nothing else counts them.

    They are children of the origin's process 1, because the process that forked them lived in its PID namespace.
    """
    servers = {namespace: copy.pid for copy in copies if (namespace := _pid_namespace(copy.pid))}
    if origin.cgroup is None:
        watchdog().count_apart(origin.pid, lambda pid: servers.get(_pid_namespace(pid)))


def _pid_namespace(pid: int) -> str:
    """PID namespace of the process; empty if it has ended."""
    try:
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    except OSError:
        return ""


def _pid_of(pidfd: int) -> int:
    """Process id of a pidfd; -1 if the process was waited for. Raises ServerDied, and closes it, if it is no pidfd."""
    fd = os.open(f"/proc/self/fdinfo/{pidfd}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        lines = os.read(fd, 4096).split(b"\n")
    finally:
        os.close(fd)
    pid = next((int(line[4:]) for line in lines if line.startswith(b"Pid:")), None)
    if pid is None:
        os.close(pidfd)
        raise ServerDied("forked server: its template handed over something that is no process")
    return pid
