"""The fork server: a program imported once in a sandbox and forked for every episode.

This is the harness's side. `spawner.py` runs in the sandbox and has the messages, the descriptors and the states.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import functools
import itertools
import logging
import os
import socket
import weakref
from collections.abc import AsyncIterator, Iterable
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from gymcp.errors import CannotFork, EnvInfraError, ServerDied, ServerTimeout
from gymcp.mcp_servers.forkserver.channel import Channel, close_fds
from gymcp.mcp_servers.forkserver.failures import START_TIMEOUT_S, compose_message, describe_failure
from gymcp.mcp_servers.forkserver.process import (
    MAX_WHY_CHARS,
    ForkedProcess,
    count_copies_apart,
    move_to_own_cgroups,
)
from gymcp.mcp_servers.forkserver.program_kinds import ProgramKind, program_kind
from gymcp.mcp_servers.forkserver.python_scripts import rehearse_imports
from gymcp.mcp_servers.forkserver.spawner import (
    CheckCopyable,
    CopiesFinished,
    CopyChecked,
    CopyFds,
    CopyServer,
    Ended,
    FinishCopies,
    Loaded,
    LoadFailed,
    LoadProgram,
    Nested,
    NestFds,
    NestSandboxes,
    Preload,
    Started,
    StartRefused,
    StartServer,
)
from gymcp.mcp_servers.loop_share import Deadline
from gymcp.mcp_servers.output_tail import show_output
from gymcp.mcp_servers.redaction import Redaction, redaction_of
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.pidfd import run_despite_cancellation
from gymcp.mcp_servers.sandbox.process import HostProcess
from gymcp.mcp_servers.sandbox.spec import Launch, Limits, Mount, SandboxProcess
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.scratch import scratch_folder

log = logging.getLogger(__name__)
SPAWNER = PurePosixPath("/srv/spawner.py")
"""Path of the spawner inside the sandbox."""
COPY_TIMEOUT_S = 10.0
_MAX_PROCESSES = 4096
"""Processes in the outer sandbox, if no cgroup limits each server's. The spawner alone needs a handful."""
_MIN_CPU_S, _CPU_S_PER_START = 30.0, 0.1
"""CPU seconds of the spawner and of processes that an import leaves in it: for imports, unless a server may use more,
and for each server that it starts. Its servers' time is not counted here."""
_SERVERS_PER_RAISE, _MEMORY_MB_PER_SERVER = 64, 2
"""Steps in which the spawner's memory limit follows the number of live servers. Each takes about 1 MB in the spawner's
cgroup, for its namespaces and for pages that it writes before it joins its own."""
_MAX_OPEN_FILES = 65_536
"""Open files of the spawner, well above a server's limit. It lowers the limit for its servers."""
_MIN_FD = 64
"""Lowest number of a descriptor that is handed over. A shell uses lower ones itself."""


class ForkServer:
    """Forks servers of one program. `open_fork_server` makes it."""

    def __init__(
        self,
        process: SandboxProcess,
        control: Channel,
        *,
        kind: ProgramKind,
        use_cgroup: bool,
        redaction: Redaction | None,
    ) -> None:
        """`redaction`: removes secret values from the spawner's standard error."""
        self.process = process
        self.gone = asyncio.Event()
        """Set once nothing more can be forked."""
        self._redaction = redaction
        self._kind = kind
        self._control = control
        self._use_cgroup = use_cgroup
        self._numbers = itertools.count(1)
        self._starting: dict[int, asyncio.Future[int]] = {}
        """Pidfds of process 1, by the number of the server."""
        self._servers: dict[int, ForkedProcess] = {}
        self._allowed_servers = 0
        """Number of live servers that the spawner's memory limit allows for."""
        self._copies: weakref.WeakSet[ForkedProcess] = weakref.WeakSet()
        self._preloaded: asyncio.Future[Loaded | LoadFailed | None] | None = None

    async def start(self, program: LoadProgram) -> None:
        """Have the program imported. Raises CannotFork, EnvInfraError."""
        try:
            async with Deadline(START_TIMEOUT_S):
                await self._control.send(program)
                answer = await self._control.receive_alone()
        except (OSError, TimeoutError, ValueError) as error:
            raise EnvInfraError(self._message(f"does not start: {describe_failure(error)}")) from error
        if not isinstance(answer, Loaded):
            raise self._import_error(answer)
        asyncio.get_running_loop().add_reader(self._control.sock, self._read_messages)

    async def preload(self, launch: Launch) -> None:
        """Have the modules imported, too, that the server imports late in a first run, which is thrown away.

        Raises EnvInfraError if it cannot be forked after that.
        """
        async with self.open_server(launch, rehearse=True) as server:
            modules = await rehearse_imports(server)
        self._preloaded = asyncio.get_running_loop().create_future()
        try:
            async with Deadline(START_TIMEOUT_S):
                await self._control.send(Preload(modules))
                answer = await self._preloaded
        except (OSError, TimeoutError) as error:
            why = f"does not import what it will need: {describe_failure(error)}"
            raise EnvInfraError(self._message(why)) from error
        if not isinstance(answer, Loaded):
            raise self._import_error(answer)

    def _import_error(self, answer: object) -> EnvInfraError:
        why = plain_text(str(answer.why)) if isinstance(answer, LoadFailed) else ""
        return CannotFork(why) if why else EnvInfraError(self._message("the program cannot be imported"))

    def _read_messages(self) -> None:
        fds: list[int] = []
        try:
            while (received := self._control.receive_now()) is not None:
                message, fds = received
                if message is None:
                    close_fds(fds)
                    self._end()
                    return
                self._handle_message(message, fds)
                fds = []
        # a program that sends messages in the spawner's name
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            close_fds(fds)
            log.error("%s", self._message(f"ended for an invalid message: {error!r}"))
            self._end()

    def _handle_message(self, message: Any, fds: list[int]) -> None:
        """Raises ValueError, KeyError or TypeError for a message that does not belong here."""
        if isinstance(message, Started):
            (pidfd,) = fds
            starting = self._starting.pop(message.number)
            if starting.done():  # the start was cancelled; without its descriptors the server ends
                os.close(pidfd)
            else:
                starting.set_result(pidfd)
        elif fds:
            raise ValueError("descriptors without a process")
        elif isinstance(message, StartRefused):
            starting = self._starting.pop(message.number)
            self._servers.pop(message.number, None)
            if not starting.done():
                starting.set_exception(CannotFork(plain_text(str(message.why))[:MAX_WHY_CHARS]))
        elif isinstance(message, Loaded | LoadFailed) and self._preloaded is not None:
            if not self._preloaded.done():
                self._preloaded.set_result(message)
        elif not isinstance(message, Ended):
            raise ValueError(f"unexpected {type(message).__name__}")
        elif message.number in self._servers:
            self._servers.pop(message.number).set_status(int(message.status))

    def _end(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            asyncio.get_running_loop().remove_reader(self._control.sock)
            for starting in self._starting.values():
                if not starting.done():
                    starting.set_exception(ServerDied(self._message("ended before the server had started")))
            self._starting.clear()
            if self._preloaded is not None and not self._preloaded.done():
                self._preloaded.set_result(None)

    def _message(self, why: str) -> str:
        tail = show_output(self.process.stderr_tail())
        return compose_message(why, tail if self._redaction is None else self._redaction.text(tail))

    @contextlib.asynccontextmanager
    async def open_server(
        self, launch: Launch, *, rehearse: bool = False, workspace: int | None = None
    ) -> AsyncIterator[ForkedProcess]:
        """A server in a sandbox of its own, until the context is left. Raises CannotFork, or ServerDied if it is gone.

        `rehearse`: see `StartServer`. `workspace`: descriptor of the mount that becomes its /workspace.
        """
        try:
            server = self._make_process(
                launch.limits, None if launch.read_only else launch.upper_folder or launch.workspace
            )
        except OSError as error:
            raise EnvInfraError(compose_message(f"the server could not be started: {error}", "")) from error
        try:
            pidfd = await self._request_start(server, rehearse, workspace)
            await server.connect(pidfd)
            yield server
        finally:
            await run_despite_cancellation(server.close())

    async def _request_start(self, server: ForkedProcess, rehearse: bool, workspace: int | None) -> int:
        """Pidfd of process 1 of the new sandbox. Raises CannotFork if it would share memory with the fork server."""
        number = next(self._numbers)
        self._allow_cpu()
        self._starting[number] = starting = asyncio.get_running_loop().create_future()
        self._servers[number] = server
        self._allow_memory()
        try:
            fds = (*server.ends.fds, *server.ends.cgroup_fds, *(() if workspace is None else (workspace,)))
            request = StartServer(number=number, rehearse=rehearse, has_workspace=workspace is not None)
            await self._control.send(request, fds)
        except OSError as error:
            self._starting.pop(number, None)
            raise ServerDied(self._message("has ended")) from error
        finally:
            server.ends.close()
        try:
            async with Deadline(START_TIMEOUT_S):
                pidfd: int = await starting
        except TimeoutError as error:
            raise ServerTimeout(self._message(f"no server within {START_TIMEOUT_S:g} s")) from error
        return pidfd

    def _allow_cpu(self) -> None:
        if isinstance(self.process, HostProcess):
            self.process.allow_cpu(_CPU_S_PER_START)

    def _allow_memory(self) -> None:
        if len(self._servers) > self._allowed_servers and isinstance(self.process, HostProcess):
            self._allowed_servers += _SERVERS_PER_RAISE
            self.process.allow_memory(_SERVERS_PER_RAISE * _MEMORY_MB_PER_SERVER)

    def _make_process(self, limits: Limits, workspace: Path | None = None) -> ForkedProcess:
        return ForkedProcess(limits, self._kind, self._copy_server, use_cgroup=self._use_cgroup, workspace=workspace)

    async def _copy_server(self, live: ForkedProcess, count: int) -> list[ForkedProcess]:
        """Copies of a live native server. Raises CannotFork, ServerDied."""
        who, orders = f"server of process {live.pid}", Channel(live.orders)
        copies: list[ForkedProcess] = []
        try:
            async with Deadline(COPY_TIMEOUT_S):
                await orders.send(CheckCopyable())
                answer = await orders.receive_alone()
                checked = CopyChecked("it has ended") if answer is None else _expect(CopyChecked, answer)
                if checked.refused:
                    raise CannotFork(f"{who}: {plain_text(str(checked.refused))[:MAX_WHY_CHARS]}")
                await self._fork_into_sandboxes(live, orders, copies, count)
                for copy in copies if checked.has_files else ():  # one at a time: each opens and closes files again
                    await copy.copy_files()
        except ValueError as error:  # a server that does not answer as the native runtime does
            await self._close_all(copies)
            why = plain_text(str(error))[:MAX_WHY_CHARS]
            raise CannotFork(f"{who}: its answer to the order to copy it is malformed: {why}") from error
        except (OSError, TimeoutError) as error:
            failure = ServerDied(self._message(f"process {live.pid} could not be copied: {error}"))
            await self._close_all(copies)
            raise failure from error
        except BaseException:
            await self._close_all(copies)
            raise
        self._copies.update(copies)
        return copies

    async def _fork_into_sandboxes(
        self, live: ForkedProcess, orders: Channel, copies: list[ForkedProcess], count: int
    ) -> None:
        """Have a sandbox made for each copy, and the live server fork into each; adds the copies to `copies`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers = Channel(ours)
        with contextlib.ExitStack() as stack:
            stack.callback(ours.close)
            stack.callback(asyncio.ensure_future(live.keep_moves_quick()).cancel)
            user, pid = (_open_namespace(live, name, stack) for name in ("user", "pid"))
            await self._control.send(NestSandboxes(count), NestFds(answers=theirs.fileno(), user=user, pid=pid))
            theirs.close()
            for _ in range(count):
                self._allow_cpu()
                copy = self._make_process(live.limits)
                copies.append(copy)
                copy.ends.close_cgroups()
                answer, handles = await answers.receive()
                try:
                    if not isinstance(answer, Nested) or not handles:
                        raise CannotFork(f"server of process {live.pid}: no sandbox could be made inside its own")
                    await copy.connect(handles.pop(0), origin=live)
                    life, *namespaces = handles
                    await orders.send(CopyServer(), (*CopyFds(*copy.ends.fds, life=life), *namespaces))
                    copy.ends.close()
                finally:
                    close_fds(handles)
            await orders.send(FinishCopies())
            answer = await orders.receive_alone()
            statuses = [1] if answer is None else _expect(CopiesFinished, answer).statuses
            if not isinstance(statuses, list):
                raise ValueError(f"statuses: expected a list, got {type(statuses).__name__}")
            if any(statuses):
                raise ConnectionError(plain_text(copies[0].stderr_tail()).strip()[-500:])
            await asyncio.to_thread(move_to_own_cgroups, copies, live)
            count_copies_apart(live, copies)

    async def _close_all(self, copies: Iterable[ForkedProcess]) -> None:
        for copy in copies:
            copy.ends.close()
            await copy.close()

    async def close(self) -> None:
        """Close all copies that are still open, so that none of their descriptors stays open."""
        self._end()
        await self._close_all(self._copies)
        self._control.sock.close()


def _open_namespace(process: ForkedProcess, name: str, stack: contextlib.ExitStack) -> int:
    fd = os.open(f"/proc/{process.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC)
    stack.callback(os.close, fd)
    return fd


def _expect(kind: type[Any], message: object) -> Any:
    """The message. Raises ValueError if it is of another kind."""
    if not isinstance(message, kind):
        raise ValueError(f"expected {kind.__name__}, got {type(message).__name__}")
    return message


@contextlib.asynccontextmanager
async def open_fork_server(sandbox: Bubblewrap, launch: Launch) -> AsyncIterator[ForkServer]:
    """A fork server for the program of `launch.fork`. At the end nothing of it or its servers is left.

    Raises EnvInfraError.
    """
    assert launch.fork is not None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _MIN_FD)
    theirs.close()
    outer = replace(
        launch,
        argv=(*launch.fork.python, str(SPAWNER), str(fd)),
        workspace=None,
        upper_folder=None,
        entry=(),
        limits=replace(
            launch.limits,
            processes=_MAX_PROCESSES,
            open_files=_MAX_OPEN_FILES,
            cpu_s=max(launch.limits.cpu_s, _MIN_CPU_S),
        ),
        mounts=(
            Mount(source=_spawner_file(os.getpid()), target=SPAWNER),
            *launch.fork.mounts,
            *launch.mounts,
        ),
        spawner=True,
        fds=(fd,),
    )
    kind = program_kind(launch)
    with contextlib.closing(ours):
        async with sandbox.start(outer) as process:
            fork_server = ForkServer(
                process,
                Channel(ours),
                kind=kind,
                use_cgroup=sandbox.uses_cgroup,
                redaction=redaction_of(launch.secrets),
            )
            try:
                await fork_server.start(kind.load_message(launch, hidden_memory=sandbox.uses_cgroup))
                if kind.imports_late:
                    await fork_server.preload(launch)
                yield fork_server
            finally:
                await fork_server.close()


@functools.cache
def _spawner_file(_: int) -> Path:
    """A copy of the spawner that servers may read, however gymcp was installed. One per process id."""
    path = scratch_folder() / "spawner.py"
    path.write_bytes(Path(__file__).with_name("spawner.py").read_bytes())
    path.chmod(0o644)
    return path
