"""Messages with descriptors over a packet socket: the harness's end of the fork server's protocol."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from collections.abc import Iterable, Sequence
from typing import Any

from gymcp.mcp_servers.forkserver.spawner import MAX_MESSAGE_BYTES, decode_message, encode_message

_MAX_FDS = 16
"""Descriptors that one message to the harness may bring."""


class Channel:
    """Sends and receives the messages of `spawner.py`, on the event loop, without a thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock

    async def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Raises OSError if the other side has closed."""
        data = [encode_message(message)]
        while True:
            try:
                socket.send_fds(self.sock, data, list(fds))
            except BlockingIOError:
                await _wait_ready(self.sock, to_write=True)
            except OSError as error:
                if error.errno != errno.ETOOMANYREFS or not raise_file_limit():
                    raise
            else:
                return

    async def receive(self) -> tuple[Any, list[int]]:
        """(message, descriptors); the message is None if the other side has closed. Raises ValueError."""
        while (received := self.receive_now()) is None:
            await _wait_ready(self.sock, to_write=False)
        return received

    async def receive_alone(self) -> Any:
        """A message that brings no descriptors. Any that come along are closed."""
        message, fds = await self.receive()
        close_fds(fds)
        return message

    def receive_now(self) -> tuple[Any, list[int]] | None:
        """Like `receive`, but None if no message has come yet."""
        try:
            data, fds, _, _ = socket.recv_fds(self.sock, MAX_MESSAGE_BYTES, _MAX_FDS)
        except BlockingIOError:
            return None
        except ConnectionError:
            return None, []
        try:
            message = decode_message(data)
        except (ValueError, RecursionError) as error:
            close_fds(fds)
            raise ValueError(f"invalid message: {error}") from error
        for fd in fds:
            os.set_inheritable(fd, False)
        return message, fds


def close_fds(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


def raise_file_limit() -> bool:
    """Raise this process's limit on open files as far as it may go; True if that is higher.

    Descriptors on their way to servers count against this limit, because the kernel counts them by user.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft != hard


async def _wait_ready(sock: socket.socket, *, to_write: bool) -> None:
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    add, remove = (loop.add_writer, loop.remove_writer) if to_write else (loop.add_reader, loop.remove_reader)
    add(sock, set_ready)
    try:
        await ready
    finally:
        remove(sock)
