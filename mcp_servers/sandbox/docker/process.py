"""A server in a container as a `SandboxProcess`."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from gymcp.mcp_servers.sandbox.cgroup import Cgroup
from gymcp.mcp_servers.sandbox.docker.container import Container, State, cgroup_of, inspect_container
from gymcp.mcp_servers.sandbox.docker.engine_api import EngineError, kill
from gymcp.mcp_servers.sandbox.docker.pool import Pool
from gymcp.mcp_servers.sandbox.process_ending import ProcessEnding, StderrTail
from gymcp.mcp_servers.sandbox.spec import Launch, Limits
from gymcp.mcp_servers.sandbox.watchdog import memory_limit, watchdog

KILLED_STATUS = 137
_STDOUT, _STDERR = 1, 2
_HEADER = struct.Struct(">BxxxL")
"""Header of each frame: the number of the stream, three zeros, the number of bytes."""
_MIN_POLL_S = 0.005
_MAX_POLL_S = 1.0
_DRAIN_TIMEOUT_S = 5.0

log = logging.getLogger(__name__)
ResultT = TypeVar("ResultT")


class SharedReading(asyncio.ReadTransport):
    """The reading of one of several streams that share a connection: they are all read while none of them is paused."""

    def __init__(self, connection: asyncio.ReadTransport, paused: set[SharedReading]) -> None:
        """`paused`: the streams of the connection that are paused, one set for all of them."""
        super().__init__()
        self._connection = connection
        self._paused = paused

    def pause_reading(self) -> None:
        self._paused.add(self)
        self._connection.pause_reading()

    def resume_reading(self) -> None:
        self._paused.discard(self)
        if not self._paused:
            self._connection.resume_reading()

    def is_reading(self) -> bool:
        return self not in self._paused and not self.is_closing()

    def is_closing(self) -> bool:
        return self._connection.is_closing()


class StreamDemultiplexer(asyncio.StreamReaderProtocol):
    """Splits the engine's frames: standard output goes to the reader, standard error to a protocol of its own."""

    def __init__(self, stdout: asyncio.StreamReader, stderr: StderrTail) -> None:
        super().__init__(stdout)
        self._stderr = stderr
        self._header = bytearray()
        self._stream = 0
        self._left = 0
        """Bytes of the current frame still to come: frames arrive in pieces, and one may be larger than memory."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.ReadTransport)
        paused = set[SharedReading]()
        super().connection_made(SharedReading(transport, paused))
        self._stderr.connection_made(SharedReading(transport, paused))

    def data_received(self, data: bytes) -> None:
        view, errors = memoryview(data), bytearray()
        while view:
            if self._left == 0:
                missing = _HEADER.size - len(self._header)
                self._header += view[:missing]
                view = view[missing:]
                if len(self._header) == _HEADER.size:
                    self._stream, self._left = _HEADER.unpack(self._header)
                    self._header.clear()
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._stream == _STDOUT:
                super().data_received(bytes(piece))
            elif self._stream == _STDERR:
                errors += piece
        if errors:  # at once, because each piece is charged and paused for by itself
            self._stderr.data_received(bytes(errors))

    def eof_received(self) -> bool | None:
        self._stderr.connection_lost(None)
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stderr.connection_lost(exc)
        super().connection_lost(exc)


class HalfCloseTransport(asyncio.WriteTransport):
    """Writing half of a connection: closing it ends standard input and leaves the reading half open."""

    def __init__(self, connection: asyncio.WriteTransport) -> None:
        super().__init__()
        self._connection = connection
        self._closed = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._connection.write(data)

    def write_eof(self) -> None:
        if not self._closed and not self._connection.is_closing():
            self._connection.write_eof()
        self._closed = True

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        self.write_eof()

    def abort(self) -> None:
        self._connection.abort()

    def is_closing(self) -> bool:
        return self._closed or self._connection.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._connection.get_write_buffer_size()


class ContainerProcess:
    """A server in a container that runs already; `open` connects it to the event loop, `close` ends it."""

    stdin: asyncio.StreamWriter
    stdout: asyncio.StreamReader
    sandbox_processes = 1
    """Number of processes that the engine adds: its init process."""
    inside_pid = None
    """Always None, because the engine counts the memory that files in private folders cost."""
    forks_servers = False

    def __init__(self, pool: Pool, launch: Launch, container: Container, state: State) -> None:
        self.launch = launch
        self._pool = pool
        self._container = container
        self._cgroup = cgroup_of(container.id, state.pid)
        self._pid = state.pid if self._cgroup is not None else -1  # an id of another machine means nothing here
        self._loop = asyncio.get_running_loop()
        self._end: asyncio.Future[int] = self._loop.create_future()
        self._ending = ProcessEnding(
            launch.limits, None
        )  # the engine says if the memory ran out, and removes the cgroup
        self._tasks: set[asyncio.Task[None]] = set()
        self._connection: asyncio.WriteTransport | None = None

    @property
    def pid(self) -> int:
        return self._pid

    @property
    def container_id(self) -> str:
        return self._container.id

    @property
    def limits(self) -> Limits:
        return self.launch.limits

    @property
    def cgroup(self) -> Cgroup | None:
        return self._cgroup

    @property
    def workspace(self) -> Path | None:
        return None if self.launch.read_only else self.launch.workspace

    @property
    def returncode(self) -> int | None:
        return self._end.result() if self._end.done() else None

    async def wait(self) -> int:
        """Wait until the server has ended, by itself or by a limit, and return its exit status."""
        return await asyncio.shield(self._end)

    def stderr_tail(self) -> str:
        return self._ending.stderr_tail()

    async def drain_stderr(self) -> None:
        """Kill the server: the engine copies the two streams independently, so both are complete only at their end."""
        await self._kill()
        if self._connection is not None:
            await asyncio.wait([self._ending.stderr.ended], timeout=_DRAIN_TIMEOUT_S)

    def exceeded_limit(self) -> str | None:
        return self._ending.limit

    def end(self, limit: str) -> None:
        """Kill the process tree, and remember the limit as the reason."""
        if self._ending.limit is None and not self._end.done():
            self._ending.record_limit(limit)
            self._spawn(self._kill)

    async def open(self) -> None:
        """Connect the standard streams."""
        self.stdout = asyncio.StreamReader(limit=self.limits.line_bytes)
        connection, streams = await self._loop.create_unix_connection(
            lambda: StreamDemultiplexer(self.stdout, self._ending.stderr), sock=self._container.streams
        )
        self._connection = connection
        self.stdin = asyncio.StreamWriter(HalfCloseTransport(connection), streams, None, self._loop)
        watchdog().add(self)
        self._spawn(self._follow)

    async def close(self) -> None:
        """Remove the container, and return when nothing of it is left."""
        watchdog().remove(self)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._connection is not None:
            self._connection.abort()
        try:
            await self._in_thread(lambda: self._pool.give_back(self.launch, self._container))
        except EngineError as error:
            log.error("docker: container %s is left behind: %s", self._container.id[:12], error)
        if not self._end.done():
            self._end.set_result(KILLED_STATUS)

    async def _follow(self) -> None:
        """Wait for the end of the streams, then for the end of the server, which may outlive its streams."""
        await asyncio.shield(self._ending.stderr.ended)
        pause = _MIN_POLL_S
        while True:
            try:
                state = await self._in_thread(lambda: inspect_container(self._container.id))
            except EngineError as error:
                log.error("docker: container %s is out of sight: %s", self._container.id[:12], error)
                state = State(running=False, status=KILLED_STATUS, out_of_memory=False, pid=0)
            if not state.running:
                break
            await asyncio.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_S)
        if state.out_of_memory:
            self._ending.record_limit(memory_limit(self.limits))
        self._end.set_result(state.status)

    async def _kill(self) -> None:
        with contextlib.suppress(EngineError):  # `close` removes a container that cannot be killed now
            await self._in_thread(lambda: kill(self._container.id))

    def _spawn(self, work: Callable[[], object]) -> None:
        task = asyncio.ensure_future(work())  # type: ignore[call-overload]
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _in_thread(self, act: Callable[[], ResultT]) -> ResultT:
        return await self._loop.run_in_executor(self._pool.workers, act)
