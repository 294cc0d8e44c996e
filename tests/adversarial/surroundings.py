"""Targets of the attempts: secrets, listeners and processes of the test, around the harness that plays them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import sqlite3
import sys
import tty
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from inside import Given, number_of
from inside_mounts import list_mounts

import gymcp.errors
from gymcp.mcp_servers.sandbox.docker.engine_api import socket_path
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder

libc = ctypes.CDLL(None, use_errno=True)
_USER_KEYRING = -4
_IPC_CREAT, _IPC_RMID = 0o1000, 0


@contextlib.asynccontextmanager
async def surroundings(token: str, folder: Path) -> AsyncIterator[Given]:
    """By name, what an attempt is told; `folder` is made new, and the harness's working folder."""
    async with contextlib.AsyncExitStack() as stack:
        given = {**_files(token, folder), **_process(token)}
        given |= await _listeners(token, folder, stack)
        given["shm_key"] = stack.enter_context(_hold_shared_memory(token))
        given["shm_file"] = stack.enter_context(_hold_shared_file(token))
        given["terminal"] = stack.enter_context(_terminal())
        stack.enter_context(_key(token))
        yield given


def _files(token: str, folder: Path) -> Given:
    for name in ("secret", "targets", "gold", "records"):
        (folder / name).write_text(f"{name}: {token}\n")
    with contextlib.closing(sqlite3.connect(folder / "secret.sqlite")) as database:
        database.execute("CREATE TABLE t(x)")
        database.execute("INSERT INTO t VALUES (?)", [token])
        database.commit()
    os.chdir(folder)
    seeds = gymcp_home() / "seeds"
    seeds.mkdir(parents=True, exist_ok=True)
    (seeds / "other").write_text(token)
    return {
        **{name: str(folder / name) for name in ("secret", "targets", "gold", "records")},
        "secret_database": str(folder / "secret.sqlite"),
        "cache": str(gymcp_home()),
        "scratch": str(scratch_folder()),
        "harness_code": gymcp.errors.__file__,
        "virtualenv": sys.prefix,
        "handle": _handle_of(folder / "secret"),
    }


def _handle_of(path: Path) -> tuple[int, str]:
    """(type, bytes) of the kernel's handle for a file."""
    buffer = ctypes.create_string_buffer((128).to_bytes(4, "little") + bytes(4 + 128), 8 + 128)
    mount = ctypes.c_int()
    call = number_of(303, 264)
    if libc.syscall(ctypes.c_long(call), -100, str(path).encode(), buffer, ctypes.byref(mount), 0) != 0:
        return 0, ""
    size, kind = (int.from_bytes(buffer.raw[at : at + 4], "little", signed=True) for at in (0, 4))
    return kind, buffer.raw[8 : 8 + size].hex()


def _process(token: str) -> Given:
    return {
        "token": token,
        "harness_pid": os.getpid(),
        "harness_user": os.getuid(),
        "host_devices": _devices(),
        "engine": str(socket_path()),
    }


def _devices() -> list[str]:
    """File systems that are mounted here, but for those of containers: numbers of ended ones are given out again."""
    mounts = (mount for mount in list_mounts() if not any(word in mount.place for word in ("docker", "containe")))
    return sorted({mount.device for mount in mounts})


async def _listeners(token: str, folder: Path, stack: contextlib.AsyncExitStack) -> Given:
    async def tell(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(token.encode())
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def answer_like_an_engine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readline()
        writer.write(b"HTTP/1.0 200 OK\r\n\r\n{}")
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def listen(start: Any) -> asyncio.Server:
        server: asyncio.Server = await start
        stack.callback(server.close)
        return server

    def port(server: asyncio.Server) -> int:
        return int(server.sockets[0].getsockname()[1])

    first = port(await listen(asyncio.start_server(tell, "127.0.0.1", 0)))
    await listen(asyncio.start_server(tell, "127.0.0.2", first))
    abstract = f"gymcp-{token}"
    await listen(asyncio.start_unix_server(tell, f"\0{abstract}"))
    await listen(asyncio.start_unix_server(tell, folder / "socket"))
    await listen(asyncio.start_unix_server(answer_like_an_engine, folder / "engine"))
    try:
        sixth = port(await listen(asyncio.start_server(tell, "::1", 0)))
    except OSError:
        sixth = 0
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Echo(token), local_addr=("127.0.0.1", 0)
    )
    stack.callback(transport.close)
    return {
        "port": first,
        "port6": sixth,
        "udp_port": transport.get_extra_info("sockname")[1],
        "abstract": abstract,
        "unix_socket": str(folder / "socket"),
        "stand_in": str(folder / "engine"),
    }


class _Echo(asyncio.DatagramProtocol):
    """Answers a datagram with the token; asked to call back, it connects to the port and says the token there."""

    def __init__(self, token: str) -> None:
        self._token = token
        self._calls: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        asked, _, port = data.rpartition(b" ")
        if asked == b"call me at" and port.isdigit():
            self._calls.add(asyncio.create_task(self._call(int(port))))
        else:
            self._transport.sendto(self._token.encode(), addr)

    async def _call(self, port: int) -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(self._token.encode())
            await writer.drain()
            writer.close()


@contextlib.contextmanager
def _hold_shared_memory(token: str) -> Any:
    key = int(token[:6], 16) + 1
    segment = libc.shmget(key, 4096, _IPC_CREAT | 0o600)
    libc.shmat.restype = ctypes.c_void_p
    ctypes.memmove(libc.shmat(segment, None, 0), token.encode(), len(token))
    try:
        yield key
    finally:
        libc.shmctl(segment, _IPC_RMID, None)


@contextlib.contextmanager
def _hold_shared_file(token: str) -> Any:
    path = Path("/dev/shm", f"gymcp-{token}")
    path.write_text(token)
    try:
        yield str(path)
    finally:
        path.unlink()


@contextlib.contextmanager
def _terminal() -> Any:
    """Somebody's, at whose other end nobody sits."""
    own, other = os.openpty()
    tty.setraw(other)
    try:
        yield os.ttyname(other)
    finally:
        os.close(own)
        os.close(other)


@contextlib.contextmanager
def _key(token: str) -> Any:
    add, control, unlink = number_of(248, 217), number_of(250, 219), 9
    name, value = f"gymcp-{token}".encode(), token.encode()
    key = libc.syscall(ctypes.c_long(add), b"user", name, value, len(value), _USER_KEYRING)
    try:
        yield
    finally:
        if key > 0:
            libc.syscall(ctypes.c_long(control), unlink, key, _USER_KEYRING)
