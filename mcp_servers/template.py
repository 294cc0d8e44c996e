"""A program imported once, in a wall of its own, and forked for every episode: the harness's side of `spawner.py`."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import itertools
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any

from gymcp.errors import EnvInfraError, ServerDied
from gymcp.mcp_servers.forked import ForkedProcess
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.spec import Launch, Mount, SandboxProcess

SPAWNER = PurePosixPath("/srv/spawner.py")
START_TIMEOUT_S = 20.0
_LOWEST_FD = 64
"""Below, a shell uses numbers of its own."""
_MAX_MESSAGE = 65_536
_MAX_FDS = 16


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
            else:
                return

    async def receive(self) -> tuple[dict[str, Any], list[int]]:
        """An empty message where the other side is gone."""
        while (found := self.receive_now()) is None:
            await _ready(self.sock, to_write=False)
        return found

    def receive_now(self) -> tuple[dict[str, Any], list[int]] | None:
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, _MAX_MESSAGE, _MAX_FDS)
        except BlockingIOError:
            return None
        except ConnectionError:
            return {}, []
        for fd in fds:
            os.set_inheritable(fd, False)
        return (json.loads(data) if data else {}), fds


class Template:
    """Forks servers of one program. Made by `open_template`."""

    def __init__(self, process: SandboxProcess, control: Channel, *, use_cgroup: bool) -> None:
        self.process = process
        self.dead = False
        self._control = control
        self._use_cgroup = use_cgroup
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._cells: dict[int, ForkedProcess] = {}

    async def begin(self, order: dict[str, Any]) -> None:
        async with asyncio.timeout(START_TIMEOUT_S):
            await self._control.send(order)
            answer, _ = await self._control.receive()
        if "ready" not in answer:
            raise EnvInfraError(answer.get("failed") or self._say("the program cannot be imported"))
        asyncio.get_running_loop().add_reader(self._control.sock, self._listen)

    def _listen(self) -> None:
        while (found := self._control.receive_now()) is not None:
            message, fds = found
            if not message:
                self._end()
                return
            if "started" in message:
                waiting = self._waiting.pop(message["started"])
                if waiting.done():  # whoever wanted it has given up; without its ends it ends
                    os.close(fds[0])
                else:
                    waiting.set_result(fds[0])
            elif message["ended"] in self._cells:
                self._cells.pop(message["ended"]).ended(message["status"])

    def _end(self) -> None:
        if not self.dead:
            self.dead = True
            asyncio.get_running_loop().remove_reader(self._control.sock)
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(ServerDied(self._say("ended before the server had started")))
            self._waiting.clear()

    def _say(self, why: str) -> str:
        return f"template: {why}; its last words: {self.process.stderr_tail().strip()[-500:]}"

    @contextlib.asynccontextmanager
    async def start(self, launch: Launch) -> AsyncIterator[ForkedProcess]:
        """A server in a cell of its own until the context is left. Raises ServerDied where the template is gone."""
        try:
            cell = ForkedProcess(launch.limits, use_cgroup=self._use_cgroup)
        except OSError as error:
            raise EnvInfraError(f"template: the server could not be started: {error}") from error
        try:
            pidfd = await self._ask(cell)
            await cell.open(pidfd)
            yield cell
        finally:
            await asyncio.shield(cell.close())

    async def _ask(self, cell: ForkedProcess) -> int:
        number = next(self._numbers)
        self._waiting[number] = waiting = asyncio.get_running_loop().create_future()
        self._cells[number] = cell
        try:
            await self._control.send({"number": number}, (*cell.ends.fds, *cell.ends.cgroup_fds))
        except OSError as error:
            self._waiting.pop(number, None)
            raise ServerDied(self._say("has ended")) from error
        finally:
            cell.ends.close()
        async with asyncio.timeout(START_TIMEOUT_S):
            return await waiting

    async def make_inside(self, fds: Sequence[int]) -> None:
        """An empty cell inside another one; it answers over the first of `fds` (see `spawner.py`)."""
        await self._control.send({"inside": 1}, fds)

    def close(self) -> None:
        self._end()
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
        argv=("python3", "-s", "-S", "-B", str(SPAWNER), str(fd)),
        mounts=(Mount(source=Path(__file__).with_name("spawner.py"), target=SPAWNER), *launch.mounts),
        spawner=True,
        fds=(fd,),
    )
    hidden_memory = sandbox.uses_cgroup
    order = {
        "path": list(launch.fork.path),
        "module": launch.fork.module,
        "disk_bytes": launch.limits.disk_mb * 1_000_000,
        "filter": base64.b64encode(
            seccomp.program(network=False, hidden_memory=hidden_memory, alone=True)
        ).decode(),
    }
    with contextlib.closing(ours):
        async with sandbox.start(wall) as process:
            template = Template(process, Channel(ours), use_cgroup=sandbox.uses_cgroup)
            try:
                await template.begin(order)
                yield template
            finally:
                template.close()


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
