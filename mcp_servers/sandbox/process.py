"""A running server: its pipes, its end, and the certainty that nothing of it is left.

Processes are spawned on the event loop's own thread with `subprocess` and followed through pidfds. asyncio's watcher
has a thread per child on Python 3.11, and the kernel sends the parent-death signal when the *thread* that spawned ends.
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
from gymcp.mcp_servers.sandbox.pidfd import ProcessEnd, finish, readable, uninterrupted
from gymcp.mcp_servers.sandbox.proctree import tagged
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.users.identity import OPEN_NAMESPACES
from gymcp.mcp_servers.sandbox.users.ownership import give_pipes
from gymcp.mcp_servers.sandbox.watchdog import cpu_limit, memory_limit, process_limit, watchdog
from gymcp.process_owner import OWNER_VARIABLE, owner

SERVER_VARIABLE = "GYMCP_SERVER"
_START_TIMEOUT_S = 30.0
_END_TIMEOUT_S = 10.0
_PIECE_S, _BYTE_S = 30e-6, 2e-9
"""What a piece of standard error takes of the loop's time."""
_RULES = (
    'umask 022; ulimit -c 0; ulimit -n "$1"; ulimit -f "$2"; shift 2; '
    'while [ "$1" != -- ]; do echo 0 >"$1" || exit 125; shift; done; shift; '
)
"""Limits and cgroups are entered before the exec, so no process of the server was ever outside them."""

log = logging.getLogger(__name__)
_numbers = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A server as the host runs it."""

    sandbox: str
    """The backend's name, for messages."""
    argv: tuple[str, ...]
    env: Mapping[str, str]
    cwd: Path
    limits: Limits
    workspace: Path | None
    """A host folder whose growth is limited."""
    use_cgroup: bool
    spare_processes: int
    """Of the sandbox itself: not counted against the limit."""
    fds: tuple[int, ...] = ()
    """Handed to the child under the same numbers; closed here once it has them."""
    info_fd: int | None = None
    """Where bwrap writes the process that is number 1 inside; closed here."""
    namespaces: tuple[str, ...] = ()
    """Paths of user namespaces that bwrap gets as descriptors: see `identity.py`."""


class Tail(asyncio.Protocol):
    """Reads for ever, no faster than its share of the loop's time allows, and keeps the end."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._share = LoopShare()
        self._transport: asyncio.ReadTransport | None = None
        self.kept = bytearray()
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport if isinstance(transport, asyncio.ReadTransport) else None

    def data_received(self, data: bytes) -> None:
        self.kept += data
        if len(self.kept) > self._size:
            del self.kept[: -self._size]
        self._share.charge(_PIECE_S + len(data) * _BYTE_S)
        if self._transport is not None and (wait_s := self._share.owed_s()):
            self._transport.pause_reading()
            asyncio.get_running_loop().call_later(wait_s, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        finish(self.ended)


class Running:
    """The `SandboxProcess` of every backend that runs a host command."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader

    def __init__(self, command: Command, cgroup: Cgroup | None, popen: subprocess.Popen[bytes], tag: str) -> None:
        self.limits = command.limits
        self.cgroup = cgroup
        self.workspace = command.workspace
        self.spare_processes = command.spare_processes
        self._command = command
        self._popen = popen
        self._tag = tag
        self._info = bytearray()
        self._first_inside: ProcessEnd | None = None
        self._transports: list[asyncio.BaseTransport] = []
        self._limit: str | None = None
        self._closing = False
        self._outer = ProcessEnd(popen.pid)
        self._outer.gone.add_done_callback(self._on_end)
        self._tail = Tail(command.limits.stderr_bytes)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def inside_pid(self) -> int | None:
        return self._first_inside.pid if self._first_inside is not None else None

    @property
    def returncode(self) -> int | None:
        return self._popen.returncode

    def stderr_tail(self) -> str:
        return self._tail.kept.decode(errors="replace")

    async def settled(self) -> None:
        """In the next turn of the loop: what a server has written is in its pipe."""
        await asyncio.sleep(0)

    def limit_hit(self) -> str | None:
        return self._limit

    async def wait(self) -> int:
        """The exit status, once the server has ended by itself or by a limit."""
        await asyncio.shield(self._outer.gone)
        self._on_end(self._outer.gone)  # where it had ended before, its callback may be yet to come
        return self._popen.wait()

    def allow_cpu(self, seconds: float) -> None:
        """Raises the limit on CPU time, for work that the server is asked to do."""
        self.limits = replace(self.limits, cpu_s=self.limits.cpu_s + seconds)

    def end(self, limit: str) -> None:
        """Kills the tree and remembers why."""
        if self._limit is None and self.returncode is None:
            self._limit = limit
        self._kill()

    async def open(self) -> None:
        """Connects the pipes; returns when the sandbox stands. Raises EnvInfraError where it cannot."""
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
        if self._command.info_fd is not None and not await self._find_first_inside(self._command.info_fd):
            self._outer.kill()
            await asyncio.wait([self._tail.ended], timeout=1.0)
            raise EnvInfraError(f"{self._command.sandbox}: the sandbox did not start: {self.stderr_tail().strip()}")

    async def close(self) -> None:
        """Ends everything at once: the world is thrown away, so there is nothing to say goodbye to."""
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
                    pipe.close()  # those that no transport had taken over
            if self.cgroup is not None:
                await self.cgroup.removed()

    def _close_handles(self) -> None:
        for transport in self._transports:
            if transport.is_closing():
                continue
            if isinstance(transport, asyncio.WriteTransport):
                transport.abort()  # close() would wait for a server that does not read
            else:
                transport.close()
        self._outer.close()
        if self._first_inside is not None:
            self._first_inside.close()
        if self._command.info_fd is not None:
            os.close(self._command.info_fd)

    async def _find_first_inside(self, info_fd: int) -> bool:
        """False where bwrap ended without making a sandbox."""
        if self._first_inside is not None:
            return True
        while (found := re.search(rb'"child-pid": (\d+)\D', self._info)) is None:
            await readable(info_fd, _START_TIMEOUT_S)
            if not (data := os.read(info_fd, 4096)):
                return False
            self._info += data
        self._first_inside = ProcessEnd(int(found[1]))
        return True

    def _kill(self) -> None:
        if self._first_inside is not None:
            self._first_inside.kill()  # the kernel takes the rest of its namespace with it
        elif self.cgroup is not None:
            self.cgroup.kill()
        else:
            for pid in {*watchdog().tree(self.pid), *tagged(SERVER_VARIABLE, self._tag)}:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    async def _end_tree(self) -> None:
        info_fd = self._command.info_fd
        # bwrap killed before it had told its child to die with it would leave the child behind: first learn who that is
        if info_fd is not None and await self._find_first_inside(info_fd):
            assert self._first_inside is not None
            self._first_inside.kill()
            await self._first_inside.gone  # only now is the last process of the namespace gone
        elif info_fd is None:
            self._kill()
            while self.cgroup.processes() if self.cgroup else tagged(SERVER_VARIABLE, self._tag):
                await asyncio.sleep(0.001)
                self._kill()
        self._outer.kill()
        await self._outer.gone

    def _on_end(self, _: asyncio.Future[None]) -> None:
        status = self._popen.wait()
        if self._closing or self._limit is not None or self.cgroup is None:
            return
        if self.cgroup.oom_kills():
            self._limit = memory_limit(self.limits)
        elif (self.cgroup.cpu_s() or 0.0) > self.limits.cpu_s:
            self._limit = cpu_limit(self.limits)
        elif status != 0 and self.cgroup.refused_forks():
            self._limit = process_limit(self.limits)


@asynccontextmanager
async def run(command: Command) -> AsyncIterator[Running]:
    """The server until the context is left, and then nothing of it. Raises EnvInfraError where it cannot be started."""
    process = _spawn(command)
    try:
        await process.open()
        yield process
    finally:
        await uninterrupted(process.close())


def _spawn(command: Command) -> Running:
    tag = f"{owner()}-{next(_numbers)}"
    hierarchy = usable_hierarchy() if command.use_cgroup else None
    cgroup: Cgroup | None = None
    try:
        if hierarchy is not None:
            cgroup = create(hierarchy, f"gymcp-{tag}", command.limits, spare_processes=command.spare_processes)
        files = str(_at_most(resource.RLIMIT_NOFILE, command.limits.open_files))
        blocks = str(_at_most(resource.RLIMIT_FSIZE, command.limits.disk_mb * 1_000_000) // 512)
        join = cgroup.join_files if cgroup is not None else ()
        rules = _RULES + OPEN_NAMESPACES if command.namespaces else _RULES
        popen = subprocess.Popen(
            [
                "/bin/sh",
                "-c",
                f'{rules}exec "$@"',
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
    return Running(command, cgroup, popen, tag)


def _at_most(kind: int, wanted: int) -> int:
    """A shell that is told to raise a hard limit fails; one that is lower already holds anyway."""
    _, hard = resource.getrlimit(kind)
    return wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
