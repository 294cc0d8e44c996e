"""A running server as a host process: its pipes, its end, and the certainty that no process of it is left.

Processes are spawned on the event loop's own thread with `subprocess` and followed through pidfds. asyncio's own child
watcher uses a thread per child on Python 3.11, and the kernel sends the parent-death signal when the *thread* that
spawned the child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import re
import resource
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.sandbox.cgroup import Cgroup, create, usable_hierarchy
from gymcp.mcp_servers.sandbox.pidfd import ProcessEnd, run_despite_cancellation, wait_readable
from gymcp.mcp_servers.sandbox.process_ending import ProcessEnding
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.users.identity import OPEN_NAMESPACES
from gymcp.mcp_servers.sandbox.users.ownership import give_pipes
from gymcp.mcp_servers.sandbox.watchdog import watchdog
from gymcp.process_owner import OWNER_VARIABLE, owner

SERVER_VARIABLE = "GYMCP_SERVER"
_START_TIMEOUT_S = 30.0
_ENTER_LIMITS = (
    'umask 022; ulimit -c 0; ulimit -n "$1"; ulimit -f "$2"; shift 2; '
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; '
)
"""Shell code that sets the limits and joins the cgroups before the exec: no process of the server is ever outside."""

_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Host command that starts a server in its sandbox."""

    sandbox: str
    """Name of the backend, for messages."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    limits: Limits
    workspace: Path | None
    """Host folder whose growth is limited."""
    use_cgroup: bool
    sandbox_processes: int
    """Number of the sandbox's own processes, which do not count against the limit."""
    forks_servers: bool = False
    """True for a fork server, whose servers are watched apart from it."""
    fds: tuple[int, ...] = ()
    """File descriptors that the child gets under the same numbers; closed here once it has them."""
    info_fd: int | None = None
    """Reading end of the pipe to which bwrap writes the host id of the sandbox's process 1; closed here."""
    namespaces: tuple[str, ...] = ()
    """Paths of the user namespaces that bwrap gets as descriptors: see `identity.py`."""


class HostProcess:
    """`SandboxProcess` of the backends that run a host command."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def __init__(self, command: Command, cgroup: Cgroup | None, popen: subprocess.Popen[bytes], tag: str) -> None:
        self.limits = command.limits
        self.cgroup = cgroup
        self.workspace = command.workspace
        self.sandbox_processes = command.sandbox_processes
        self.forks_servers = command.forks_servers
        self._command = command
        self._popen = popen
        self._tag = tag
        self._info = bytearray()
        self._innermost: ProcessEnd | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._ending = ProcessEnding(command.limits, cgroup)
        self._outermost = ProcessEnd(popen.pid)
        self._outermost.gone.add_done_callback(self._on_end)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def inside_pid(self) -> int | None:
        return self._innermost.pid if self._innermost is not None else None

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    def stderr_tail(self) -> str:
        return self._ending.stderr_tail()

    async def drain_stderr(self) -> None:
        await self._ending.drain_stderr()

    def exceeded_limit(self) -> str | None:
        return self._ending.limit

    async def wait(self) -> int:
        """Wait until the server has ended, by itself or by a limit, and return its exit status."""
        await asyncio.shield(self._outermost.gone)
        self._on_end(self._outermost.gone)  # if it had ended before, the callback may not have run yet
        return self._popen.wait()

    def allow_cpu(self, seconds: float) -> None:
        """Raise the limit on CPU time by this much, for work that the harness asks the server to do."""
        self.limits = replace(self.limits, cpu_s=self.limits.cpu_s + seconds)

    def allow_memory(self, memory_mb: int) -> None:
        """Raise the limit on memory by this much, likewise."""
        self.limits = replace(self.limits, memory_mb=self.limits.memory_mb + memory_mb)
        if self.cgroup is not None:
            with contextlib.suppress(OSError):  # it has ended, or the machine refuses: the old limit holds
                self.cgroup.raise_memory(self.limits.memory_mb)

    def end(self, limit: str) -> None:
        """Kill the process tree, and remember the limit as the reason."""
        if self.returncode is None:
            self._ending.record_limit(limit)
        self._kill()

    async def open(self) -> None:
        """Connect the pipes, and return when the sandbox is set up. Raises EnvInfraError if it cannot be."""
        loop = asyncio.get_running_loop()
        popen = self._popen
        self.stdout = asyncio.StreamReader(limit=self.limits.line_bytes)
        lines = asyncio.StreamReaderProtocol(self.stdout)
        self._transports.append((await loop.connect_read_pipe(lambda: lines, popen.stdout))[0])
        self._transports.append((await loop.connect_read_pipe(lambda: self._ending.stderr, popen.stderr))[0])
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # the public protocol with drain() in it
        sink, _ = await loop.connect_write_pipe(lambda: flow, popen.stdin)
        self._transports.append(sink)
        self.stdin = asyncio.StreamWriter(sink, flow, None, loop)
        watchdog().add(self)
        if self._command.info_fd is not None and not await self._find_innermost(self._command.info_fd):
            self._outermost.kill()
            await asyncio.wait([self._ending.stderr.ended], timeout=1.0)
            raise EnvInfraError(f"{self._command.sandbox}: the sandbox did not start: {self.stderr_tail().strip()}")

    async def close(self) -> None:
        """Kill everything at once: the server's state is thrown away, so a graceful end would gain nothing."""
        self._ending.is_closing = True
        try:
            async with self._ending.limit_kill_time(self._command.sandbox, self.pid):
                await self._end_tree()
        finally:
            watchdog().remove(self)
            self._close_handles()
            await asyncio.sleep(0)  # a transport closes its pipe in the next turn of the loop
            for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    pipe.close()  # closes the pipes that no transport had taken over
            await self._ending.remove_cgroup()

    def _close_handles(self) -> None:
        for transport in self._transports:
            if transport.is_closing():
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # close() would wait for a server that does not read
            else:
                transport.close()
        self._outermost.close()
        if self._innermost is not None:
            self._innermost.close()
        if self._command.info_fd is not None:
            os.close(self._command.info_fd)

    async def _find_innermost(self, info_fd: int) -> bool:
        """Learn the host id of the sandbox's process 1; False if bwrap ended without making a sandbox."""
        if self._innermost is not None:
            return True
        while (match := re.search(rb'"child-pid": (\d+)\D', self._info)) is None:
            await wait_readable(info_fd, _START_TIMEOUT_S)
            if not (data := os.read(info_fd, 4096)):
                return False
            self._info += data
        self._innermost = ProcessEnd(int(match[1]))
        return True

    def _kill(self) -> None:
        if self._innermost is not None:
            self._innermost.kill()  # process 1 of the PID namespace: the kernel kills the rest of the namespace
        elif self.cgroup is not None:
            self.cgroup.kill()
        else:
            for pid in {*watchdog().tree(self.pid), *find_by_environment(SERVER_VARIABLE, self._tag)}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    async def _end_tree(self) -> None:
        info_fd = self._command.info_fd
        # bwrap, if killed before its child has set the parent-death signal, leaves the child behind: find that first
        if info_fd is not None and await self._find_innermost(info_fd):
            assert self._innermost is not None
            self._innermost.kill()
            await self._innermost.gone  # process 1 ends after every other process of its namespace
        elif info_fd is None:
            self._kill()
            while self.cgroup.processes() if self.cgroup else find_by_environment(SERVER_VARIABLE, self._tag):
                await asyncio.sleep(0.001)
                self._kill()
        self._outermost.kill()
        await self._outermost.gone

    def _on_end(self, _: asyncio.Future[None]) -> None:
        self._ending.find_limit(self.limits, count_forks=self._popen.wait() != 0)


@asynccontextmanager
async def run(command: Command) -> AsyncIterator[HostProcess]:
    """Run the server until the context is left; then nothing of it remains. Raises EnvInfraError if it cannot start."""
    process = _spawn(command)
    try:
        await process.open()
        yield process
    finally:
        await run_despite_cancellation(process.close())


def _spawn(command: Command) -> HostProcess:
    tag = f"{owner()}-{next(_numbers)}"
    hierarchy = usable_hierarchy() if command.use_cgroup else None
    cgroup: Cgroup | None = None
    try:
        if hierarchy is not None:
            cgroup = create(hierarchy, f"gymcp-{tag}", command.limits, sandbox_processes=command.sandbox_processes)
        files = str(_cap_to_hard_limit(resource.RLIMIT_NOFILE, command.limits.open_files))
        blocks = str(_cap_to_hard_limit(resource.RLIMIT_FSIZE, command.limits.disk_mb * 1_000_000) // 512)
        join = cgroup.join_files if cgroup is not None else ()
        script = _ENTER_LIMITS + OPEN_NAMESPACES if command.namespaces else _ENTER_LIMITS
        popen = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                f'{script}exec "$@"',
                "sh",
                files,
                blocks,
                *join,
                "--",
                *command.namespaces,
                *command.argv,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            cwd=command.cwd,
            env={**command.env, OWNER_VARIABLE: owner(), SERVER_VARIABLE: tag},
            pass_fds=command.fds,
            start_new_session=True,
        )
        if command.namespaces:
            give_pipes(*(pipe.fileno() for pipe in (popen.stdin, popen.stdout, popen.stderr) if pipe is not None))
    except OSError as error:
        if cgroup is not None:
            cgroup.remove()
        if command.info_fd is not None:
            os.close(command.info_fd)
        raise EnvInfraError(f"{command.sandbox}: the server could not be started: {error}") from error
    finally:
        for fd in command.fds:
            os.close(fd)
    return HostProcess(command, cgroup, popen, tag)


def _cap_to_hard_limit(kind: int, value: int) -> int:
    """The smaller of the value and the hard limit: a shell that is told to raise a hard limit fails."""
    _, hard = resource.getrlimit(kind)
    return value if hard == resource.RLIM_INFINITY else min(value, hard)
