"""A program imported once, in a wall of its own, and forked for every episode: the harness's side of `spawner.py`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import errno
import fcntl
import functools
import itertools
import json
import logging
import math
import os
import resource
import socket
import weakref
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from gymcp.errors import CannotFork, EnvInfraError, ServerDied, ServerTimeout
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.python_scripts import rehearsed_imports
from gymcp.mcp_servers.loop_share import Deadline
from gymcp.mcp_servers.redaction import Redaction, redaction_of
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.cgroup import usable_hierarchy
from gymcp.mcp_servers.sandbox.pidfd import run_despite_cancellation
from gymcp.mcp_servers.sandbox.process import HostProcess
from gymcp.mcp_servers.sandbox.spec import Launch, Limits, Mount, SandboxProcess
from gymcp.mcp_servers.sanitize import plain_text
from gymcp.scratch import scratch_folder

log = logging.getLogger(__name__)
SPAWNER = PurePosixPath("/srv/spawner.py")
START_TIMEOUT_S = 20.0
COPY_TIMEOUT_S = 10.0
_WALL_PROCESSES = 4096
"""In the wall as a whole, where no cgroup holds each cell's; the spawner alone needs a handful."""
_LEAST_CPU_S, _CPU_S_OF_START = 30.0, 0.1
"""CPU time of the spawner: for its imports, if a server may not use more, and for each server that it makes."""
_WALL_FILES = 65_536
"""For the spawner: well above a server's. It lowers the limit for its cells."""
_LOWEST_FD = 64
"""Below, a shell uses numbers of its own."""
_MAX_MESSAGE = 65_536
_MAX_FDS = 16
_MAX_WHY = 500
"""Characters of a server's reason."""


class Channel:
    """Messages with descriptors over a packet socket, without a thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    async def send(self, message: dict[str, Any], fds: Sequence[int] = ()) -> None:
        """Raises OSError where the other side is gone."""
        data = [json.dumps(message).encode()]
        while True:
            try:
                socket.send_fds(self.sock, data, list(fds))
            except BlockingIOError:
                await _ready(self.sock, to_write=True)
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or not _raise_file_limit():
                    raise
            else:
                return

    async def receive(self) -> tuple[dict[str, Any], list[int]]:
        """An empty message where the other side is gone. Raises ValueError for what is none."""
        while (found := self.receive_now()) is None:
            await _ready(self.sock, to_write=False)
        return found

    async def receive_alone(self) -> dict[str, Any]:
        """The same of a message that brings no descriptors; those that come along are closed."""
        message, fds = await self.receive()
        _close(fds)
        return message

    def receive_now(self) -> tuple[dict[str, Any], list[int]] | None:
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, _MAX_MESSAGE, _MAX_FDS)
        except BlockingIOError:
            return None
        except ConnectionError:
            return {}, []
        try:
            message = json.loads(data) if data else {}
            if not isinstance(message, dict):
                raise ValueError("not an object")
        except (ValueError, RecursionError) as error:
            _close(fds)
            raise ValueError(f"invalid message: {error}") from error
        for fd in fds:
            os.set_inheritable(fd, False)
        return message, fds


class Template:
    """Forks servers of one program. Made by `open_template`."""

    def __init__(self, process: SandboxProcess, control: Channel, *, use_cgroup: bool, is_script: bool = False) -> None:
        self.process = process
        self.redaction: Redaction | None = None
        """What must not be told of its last words."""
        self._is_script = is_script
        self.gone = asyncio.Event()
        """Set once nothing can be forked from it any more."""
        self._control = control
        self._use_cgroup = use_cgroup
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._cells: dict[int, ForkedProcess] = {}
        self._copies: weakref.WeakSet[ForkedProcess] = weakref.WeakSet()
        self._learned: asyncio.Future[dict[str, Any]] | None = None

    async def begin(self, order: dict[str, Any]) -> None:
        try:
            async with Deadline(START_TIMEOUT_S):
                await self._control.send(order)
                answer = await self._control.receive_alone()
        except (OSError, TimeoutError, ValueError) as error:
            raise EnvInfraError(self._say(f"does not start: {error}")) from error
        if "ready" not in answer:
            raise self._refusal(answer)
        asyncio.get_running_loop().add_reader(self._control.sock, self._listen)

    def _refusal(self, answer: dict[str, Any]) -> EnvInfraError:
        why = plain_text(str(answer.get("failed", "")))
        return CannotFork(why) if why else EnvInfraError(self._say("the program cannot be imported"))

    async def learn(self, launch: Launch) -> None:
        """Has the modules imported, too, that a first run of the server imports late; the run is thrown away.

        Raises EnvInfraError where it cannot be forked after that.
        """
        async with self.start(launch, {"rehearse": True}) as cell:
            modules = await rehearsed_imports(cell)
        self._learned = asyncio.get_running_loop().create_future()
        try:
            async with Deadline(START_TIMEOUT_S):
                await self._control.send({"learn": modules})
                answer = await self._learned
        except (OSError, TimeoutError) as error:
            raise EnvInfraError(self._say(f"does not import what it will need: {error}")) from error
        if "ready" not in answer:
            raise self._refusal(answer)

    def _listen(self) -> None:
        fds: list[int] = []
        try:
            while (found := self._control.receive_now()) is not None:
                message, fds = found
                if not message:
                    _close(fds)
                    self._end()
                    return
                self._heed(message, fds)
                fds = []
        # a program that talks in the spawner's name
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
            _close(fds)
            log.error("%s", self._say(f"ended for an invalid message: {error!r}"))
            self._end()

    def _heed(self, message: dict[str, Any], fds: list[int]) -> None:
        if "started" in message:
            (pidfd,) = fds
            waiting = self._waiting.pop(message["started"])
            if waiting.done():  # whoever wanted it has given up; without its ends it ends
                os.close(pidfd)
            else:
                waiting.set_result(pidfd)
        elif fds:
            raise ValueError("descriptors without a process")
        elif self._learned is not None and message.keys() & {"ready", "failed"}:
            if not self._learned.done():
                self._learned.set_result(message)
        elif message["ended"] in self._cells:
            self._cells.pop(message["ended"]).ended(int(message["status"]))

    def _end(self) -> None:
        if not self.gone.is_set():
            self.gone.set()
            asyncio.get_running_loop().remove_reader(self._control.sock)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ServerDied(self._say("ended before the server had started")))
            self._waiting.clear()
            if self._learned is not None and not self._learned.done():
                self._learned.set_result({})

    def _say(self, why: str) -> str:
        said = plain_text(self.process.stderr_tail())
        said = said if self.redaction is None else self.redaction.text(said)
        return f"template: {why}; its last words: {said.strip()[-500:]}"

    @contextlib.asynccontextmanager
    async def start(
        self, launch: Launch, order: Mapping[str, bool] = MappingProxyType({}), *, tree: int | None = None
    ) -> AsyncIterator[ForkedProcess]:
        """A server in a cell of its own until the context is left. Raises ServerDied where the template is gone.

        `tree`: the mount that is to be its /workspace.
        """
        try:
            cell = self._cell(launch.limits, None if launch.read_only else launch.upper_folder or launch.workspace)
        except OSError as error:
            raise EnvInfraError(f"template: the server could not be started: {error}") from error
        try:
            pidfd = await self._ask(cell, order, tree)
            await cell.open(pidfd)
            yield cell
        finally:
            await run_despite_cancellation(cell.close())

    async def _ask(self, cell: ForkedProcess, order: Mapping[str, bool], tree: int | None) -> int:
        number = next(self._numbers)
        self._allow_cpu()
        self._waiting[number] = waiting = asyncio.get_running_loop().create_future()
        self._cells[number] = cell
        try:
            fds = (*cell.ends.fds, *cell.ends.cgroup_fds)
            if tree is None:
                await self._control.send({**order, "number": number}, fds)
            else:
                await self._control.send({**order, "number": number, "tree": True}, (*fds, tree))
        except OSError as error:
            self._waiting.pop(number, None)
            raise ServerDied(self._say("has ended")) from error
        finally:
            cell.ends.close()
        try:
            async with Deadline(START_TIMEOUT_S):
                pidfd: int = await waiting
        except TimeoutError as error:
            raise ServerTimeout(self._say(f"no server within {START_TIMEOUT_S:g} s")) from error
        return pidfd

    def _allow_cpu(self) -> None:
        if isinstance(self.process, HostProcess):
            self.process.allow_cpu(_CPU_S_OF_START)

    def _cell(self, limits: Limits, workspace: Path | None = None) -> ForkedProcess:
        return ForkedProcess(
            limits,
            None if self._is_script else self._copy,
            use_cgroup=self._use_cgroup,
            workspace=workspace,
            is_script=self._is_script,
        )

    async def _copy(self, live: ForkedProcess, count: int) -> list[ForkedProcess]:
        orders = Channel(live.orders)
        copies: list[ForkedProcess] = []
        try:
            async with Deadline(COPY_TIMEOUT_S):
                await orders.send({"check": True})
                answer = await orders.receive_alone()
                if refused := answer.get("refused", "it has ended"):
                    raise CannotFork(f"server of process {live.pid}: {plain_text(str(refused))[:_MAX_WHY]}")
                await self._fill(live, orders, copies, count)
        except ValueError as error:  # a server that does not answer as the native runtime does
            await self._close_all(copies)
            why = plain_text(str(error))[:_MAX_WHY]
            raise CannotFork(
                f"server of process {live.pid}: its answer to the order of a copy is none: {why}"
            ) from error
        except (OSError, TimeoutError) as error:
            failure = ServerDied(self._say(f"process {live.pid} could not be copied: {error}"))
            await self._close_all(copies)
            raise failure from error
        except BaseException:
            await self._close_all(copies)
            raise
        self._copies.update(copies)
        return copies

    async def _fill(self, live: ForkedProcess, orders: Channel, copies: list[ForkedProcess], count: int) -> None:
        """Has a cell made for each copy, and the live server fork into each that is ready; adds them to `copies`."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        answers = Channel(ours)
        with contextlib.ExitStack() as opened:
            opened.callback(ours.close)
            places = [os.open(f"/proc/{live.pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in ("user", "pid")]
            for fd in places:
                opened.callback(os.close, fd)
            await self._control.send({"inside": count}, (theirs.fileno(), *places))
            theirs.close()
            for _ in range(count):
                self._allow_cpu()
                copy = self._cell(live.limits)
                copies.append(copy)
                copy.ends.close_cgroups()
                answer, handles = await answers.receive()
                try:
                    if not answer or not handles:
                        raise CannotFork(f"server of process {live.pid}: no cell could be made in its own")
                    await copy.open(handles.pop(0), origin=live)
                    await orders.send({"copy": True}, (*copy.ends.fds, *handles))
                    copy.ends.close()
                finally:
                    _close(handles)
            await orders.send({"settle": True})
            settled = (await orders.receive_alone()).get("settled", [1])
            if not isinstance(settled, list):
                raise ValueError(f"settled: expected a list, got {type(settled).__name__}")
            if any(settled):
                raise ConnectionError(plain_text(copies[0].stderr_tail()).strip()[-500:])
            for copy in copies:
                copy.take_in(live)

    async def _close_all(self, copies: Iterable[ForkedProcess]) -> None:
        for copy in copies:
            copy.ends.close()
            await copy.close()

    async def close(self) -> None:
        """Copies that nobody closed are closed, so that no descriptor of theirs stays open."""
        self._end()
        await self._close_all(self._copies)
        self._control.sock.close()


@contextlib.asynccontextmanager
async def open_template(sandbox: Bubblewrap, launch: Launch) -> AsyncIterator[Template]:
    """Imports the program of `launch.fork`; at the end nothing of it or its servers is left. Raises EnvInfraError."""
    assert launch.fork is not None
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    fd = fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    theirs.close()
    wall = replace(
        launch,
        argv=(*launch.fork.python, str(SPAWNER), str(fd)),
        workspace=None,
        upper_folder=None,
        entry=(),
        limits=replace(launch.limits, processes=_WALL_PROCESSES, open_files=_WALL_FILES, cpu_s=_cpu_s(sandbox, launch)),
        mounts=(
            Mount(source=_spawner_file(os.getpid()), target=SPAWNER),
            *launch.fork.mounts,
            *launch.mounts,
        ),
        spawner=True,
        fds=(fd,),
    )
    is_script = bool(launch.fork.script)
    order = {
        "path": list(launch.fork.path),
        "module": launch.fork.module,
        "disk_bytes": launch.limits.disk_mb * 1_000_000,
        "open_files": launch.limits.open_files,
        "reads_all": launch.reads_all,
        "filter": _filter(sandbox, forked_server=not is_script),
    }
    if is_script:
        order |= {"argv": launch.fork.script, "import_filter": _filter(sandbox, makes_namespaces=True)}
    with contextlib.closing(ours):
        async with sandbox.start(wall) as process:
            template = Template(process, Channel(ours), use_cgroup=sandbox.uses_cgroup, is_script=is_script)
            template.redaction = redaction_of(launch.secrets)
            try:
                await template.begin(order)
                if is_script:
                    await template.learn(launch)
                yield template
            finally:
                await template.close()


@functools.cache
def _spawner_file(_: int) -> Path:
    """A copy that servers may read, however gymcp was installed."""
    path = scratch_folder() / "spawner.py"
    path.write_bytes(Path(__file__).with_name("spawner.py").read_bytes())
    path.chmod(0o644)
    return path


def _cpu_s(sandbox: Bubblewrap, launch: Launch) -> float:
    """Limit for the spawner and what an import left in its wall. Only a cgroup tells that from what its servers use."""
    hierarchy = usable_hierarchy() if sandbox.uses_cgroup else None
    return math.inf if hierarchy is None or hierarchy.cpu is None else max(launch.limits.cpu_s, _LEAST_CPU_S)


def _filter(sandbox: Bubblewrap, *, forked_server: bool = False, makes_namespaces: bool = False) -> str:
    program = seccomp.program(
        network=False, hidden_memory=sandbox.uses_cgroup, forked_server=forked_server, makes_namespaces=makes_namespaces
    )
    return base64.b64encode(program).decode()


def _close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def _raise_file_limit() -> bool:
    """True if it could be raised. Descriptors that servers keep in flight count against it, as those of one user."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft != hard


async def _ready(sock: socket.socket, *, to_write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def note() -> None:
        if not ready.done():
            ready.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(sock, note)
    try:
        await ready
    finally:
        remove(sock)
