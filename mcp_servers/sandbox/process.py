"""A running server as a host process: its pipes, its end, and the certainty that no process of it is left.

Processes are spawned on the event loop's own thread with `subprocess` and followed through pidfds. asyncio's own child
watcher uses a thread per child on Python 3.11, and the kernel sends the parent-death signal when the *thread* that
spawned the child ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
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
from gymcp.mcp_servers.loop_share import LoopShare
from gymcp.mcp_servers.sandbox.cgroup import Cgroup, create, usable_hierarchy
from gymcp.mcp_servers.sandbox.pidfd import ProcessEnd, run_despite_cancellation, set_done, wait_readable
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.users.identity import OPEN_NAMESPACES
from gymcp.mcp_servers.sandbox.users.ownership import give_pipes
from gymcp.mcp_servers.sandbox.watchdog import cpu_limit, memory_limit, process_limit, watchdog
from gymcp.process_owner import OWNER_VARIABLE, owner

SERVER_VARIABLE = "GYMCP_SERVER"
_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 10.0
_PIECE_S, _BYTE_S = 30e-6, 2e-9
"""Seconds of the event loop's time that a piece of standard error takes: per piece, and per byte."""
_ENTER_LIMITS = (
    'umask 022; ulimit -c 0; ulimit -n "$1"; ulimit -f "$2"; shift 2; '
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; '
)
"""Shell code that sets the limits and joins the cgroups before the exec: no process of the server is ever outside."""

log = logging.getLogger(__name__)
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
    fds: tuple[int, ...] = ()
    """File descriptors that the child gets under the same numbers; closed here once it has them."""
    info_fd: int | None = None
    """Reading end of the pipe to which bwrap writes the host id of the sandbox's process 1; closed here."""
    namespaces: tuple[str, ...] = ()
    """Paths of the user namespaces that bwrap gets as descriptors: see `identity.py`."""


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


class HostProcess:
    """`SandboxProcess` of the backends that run a host command."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def __init__(self, command: Command, cgroup: Cgroup | None, popen: subprocess.Popen[bytes], tag: str) -> None:
        self.limits = command.limits
        self.cgroup = cgroup
        self.workspace = command.workspace
        self.sandbox_processes = command.sandbox_processes
        self._command = command
        self._popen = popen
        self._tag = tag
        self._info = bytearray()
        self._innermost: ProcessEnd | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._limit: str | None = None
        self._closing = False
        self._outermost = ProcessEnd(popen.pid)
        self._outermost.gone.add_done_callback(self._on_end)
        self._tail = StderrTail(command.limits.stderr_bytes)

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
        return self._tail.content.decode(errors="replace")

    async def drain_stderr(self) -> None:
        """One turn of the event loop is enough: all that the server has written is in its pipe by then."""
        await asyncio.sleep(0)

    def limit_hit(self) -> str | None:
        return self._limit

    async def wait(self) -> int:
        """Wait until the server has ended, by itself or by a limit, and return its exit status."""
        await asyncio.shield(self._outermost.gone)
        self._on_end(self._outermost.gone)  # if it had ended before, the callback may not have run yet
        return self._popen.wait()

    def allow_cpu(self, seconds: float) -> None:
        """Raise the limit on CPU time by this much, for work that the harness asks the server to do."""
        self.limits = replace(self.limits, cpu_s=self.limits.cpu_s + seconds)

    def end(self, limit: str) -> None:
        """Kill the process tree, and remember the limit as the reason."""
        if self._limit is None and self.returncode is None:
            self._limit = limit
        self._kill()

    async def open(self) -> None:
        """Connect the pipes, and return when the sandbox is set up. Raises EnvInfraError if it cannot be."""
        loop = asyncio.get_running_loop()
        popen = self._popen
        self.stdout = asyncio.StreamReader(limit=self.limits.line_bytes)
        lines = asyncio.StreamReaderProtocol(self.stdout)
        self._transports.append((await loop.connect_read_pipe(lambda: lines, popen.stdout))[0])
        self._transports.append((await loop.connect_read_pipe(lambda: self._tail, popen.stderr))[0])
        flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())  # the public protocol with drain() in it
        sink, _ = await loop.connect_write_pipe(lambda: flow, popen.stdin)
        self._transports.append(sink)
        self.stdin = asyncio.StreamWriter(sink, flow, None, loop)
        watchdog().add(self)
        if self._command.info_fd is not None and not await self._find_innermost(self._command.info_fd):
            self._outermost.kill()
            await asyncio.wait([self._tail.ended], timeout=1.0)
            raise EnvInfraError(f"{self._command.sandbox}: the sandbox did not start: {self.stderr_tail().strip()}")

    async def close(self) -> None:
        """Kill everything at once: the server's state is thrown away, so a graceful end would gain nothing."""
        self._closing = True
        try:
            async with asyncio.timeout(_END_TIMEOUT_S):
                await self._end_tree()
        except TimeoutError:
            log.error("%s: process %d does not end on SIGKILL; left behind", self._command.sandbox, self.pid)
        finally:
            watchdog().remove(self)
            self._close_handles()
            await asyncio.sleep(0)  # a transport closes its pipe in the next turn of the loop
            for pipe in (self._popen.stdin, self._popen.stdout, self._popen.stderr):
                if pipe is not None:
                    pipe.close()  # closes the pipes that no transport had taken over
            if self.cgroup is not None:
                await self.cgroup.remove_when_empty()

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
        status = self._popen.wait()
        if self._closing or self._limit is not None or self.cgroup is None:
            return
        if self.cgroup.oom_kills():
            self._limit = memory_limit(self.limits)
        elif (self.cgroup.cpu_s() or 0.0) > self.limits.cpu_s:
            self._limit = cpu_limit(self.limits)
        elif status != 0 and self.cgroup.count_refused_forks():
            self._limit = process_limit(self.limits)


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
