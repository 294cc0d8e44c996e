"""Relay inside the sandbox of an agent program: the program's own loopback leads to the gateway's unix socket.

It opens the port, starts the program with its own standard streams, copies bytes between connections to the port and
the socket, and ends with the program's status.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading

PIECE_BYTES = 65536
MAX_DISCARDED_BYTES, SILENCE_S = 200_000_000, 1.0
"""Bytes that are read of a program after the gateway has closed a connection, and the longest silence meanwhile."""
NOT_FOUND = 127
"""Exit status if the program cannot be started, as a shell's."""


def main() -> None:
    port, path, argv = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    listener = socket.create_server(("127.0.0.1", port), backlog=128)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # for what is accepted, too
    threading.Thread(target=_accept, args=(listener, path), daemon=True).start()
    try:
        status = subprocess.call(argv)
    except OSError as error:
        sys.stderr.write(f"{argv[0]}: {error.strerror}\n")
        status = NOT_FOUND
    sys.exit(status if status >= 0 else 128 - status)


def _accept(listener: socket.socket, path: str) -> None:
    while True:
        near, _ = listener.accept()
        threading.Thread(target=_connect, args=(near, path), daemon=True).start()


def _connect(near: socket.socket, path: str) -> None:
    """Relay one connection of the program, and close it."""
    with near, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as far, contextlib.suppress(OSError):
        far.connect(path)
        back = threading.Thread(target=_copy, args=(far, near), daemon=True)
        back.start()
        if not _copy(near, far):
            _discard(near)
        back.join()


def _copy(source: socket.socket, target: socket.socket) -> bool:
    """Copy until the source ends, then end the target; False if the target takes no more."""
    taken = True
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            taken = False
            target.sendall(piece)
            taken = True
    with contextlib.suppress(OSError):
        target.shutdown(socket.SHUT_WR)
    return taken


def _discard(near: socket.socket) -> None:
    """Read what the program still sends: the gateway's answer would be lost if the connection was closed meanwhile."""
    size = 0
    near.settimeout(SILENCE_S)
    with contextlib.suppress(OSError):
        while size < MAX_DISCARDED_BYTES and (piece := near.recv(PIECE_BYTES)):
            size += len(piece)
