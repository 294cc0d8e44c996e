"""The two kinds of programs that a fork server forks, and what the harness does differently for each.

`spawner.py` has the same two kinds inside the sandbox.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import socket
from typing import Protocol

from gymcp.mcp_servers.forkserver.spawner import LoadProgram
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.spec import Forkable, Launch

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
"""(standard output, standard input) of a server."""


class ProgramKind(Protocol):
    """A kind of program, for the harness's side of a fork server."""

    @property
    def orders_type(self) -> socket.SocketKind:
        """Type of a server's second socket, whose descriptor is `ServerFds.orders`."""
        ...

    @property
    def copyable(self) -> bool:
        """True if a live server takes orders, so that it can be copied between two calls."""
        ...

    @property
    def imports_late(self) -> bool:
        """True if a first run, which is thrown away, shows more modules to import."""
        ...

    def load_message(self, launch: Launch, *, hidden_memory: bool) -> LoadProgram:
        """First message to the spawner. `hidden_memory`: see `seccomp.program`."""
        ...

    async def open_streams(
        self, wire: socket.socket, orders: socket.socket, line_bytes: int, connections: contextlib.ExitStack
    ) -> Streams:
        """Connect to a server's two sockets. `connections` closes what was opened, also if this is cancelled."""
        ...


class NativeProgram:
    """gymcp's own servers: one socket carries the session, the other one orders to copy the server."""

    orders_type = socket.SOCK_SEQPACKET
    copyable = True
    imports_late = False

    def load_message(self, launch: Launch, *, hidden_memory: bool) -> LoadProgram:
        servers = seccomp.program(network=False, hidden_memory=hidden_memory, forked_server=True)
        return _load_message(launch, argv=None, server_filter=servers, import_filter=b"")

    async def open_streams(
        self, wire: socket.socket, orders: socket.socket, line_bytes: int, connections: contextlib.ExitStack
    ) -> Streams:
        return await _connect(wire, line_bytes, connections)


class ScriptProgram:
    """Third-party programs: the two sockets are standard input and standard output, and the server takes no orders."""

    orders_type = socket.SOCK_STREAM
    copyable = False
    imports_late = True

    def load_message(self, launch: Launch, *, hidden_memory: bool) -> LoadProgram:
        servers = seccomp.program(network=False, hidden_memory=hidden_memory)
        imports = seccomp.program(network=False, hidden_memory=hidden_memory, makes_namespaces=True)
        argv = list(_forkable(launch).script)
        return _load_message(launch, argv=argv, server_filter=servers, import_filter=imports)

    async def open_streams(
        self, wire: socket.socket, orders: socket.socket, line_bytes: int, connections: contextlib.ExitStack
    ) -> Streams:
        _, stdin = await _connect(wire, line_bytes, connections)
        stdout, _ = await _connect(orders, line_bytes, connections)
        return stdout, stdin


def program_kind(launch: Launch) -> ProgramKind:
    """Kind of the program of `launch.fork`."""
    return ScriptProgram() if _forkable(launch).script else NativeProgram()


def _forkable(launch: Launch) -> Forkable:
    assert launch.fork is not None
    return launch.fork


def _load_message(launch: Launch, *, argv: list[str] | None, server_filter: bytes, import_filter: bytes) -> LoadProgram:
    fork = _forkable(launch)
    return LoadProgram(
        path=list(fork.path),
        module=fork.module,
        argv=argv,
        filter=base64.b64encode(server_filter).decode(),
        import_filter=base64.b64encode(import_filter).decode(),
        disk_bytes=launch.limits.disk_mb * 1_000_000,
        open_files=launch.limits.open_files,
        reads_all=launch.reads_all,
    )


async def _connect(sock: socket.socket, line_bytes: int, connections: contextlib.ExitStack) -> Streams:
    reader, writer = await asyncio.open_connection(sock=sock, limit=line_bytes)
    connections.callback(_abort, writer)
    return reader, writer


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close the connection without a flush. Its writer must be kept until then, because it closes on deletion."""
    writer.transport.abort()
