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
        far = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            far.connect(path)
        except OSError:
            near.close()
            far.close()
            continue
        threading.Thread(target=_copy, args=(near, far), daemon=True).start()
        threading.Thread(target=_copy, args=(far, near), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(PIECE_BYTES):
            target.sendall(piece)
    for each, way in ((target, socket.SHUT_WR), (source, socket.SHUT_RD)):
        with contextlib.suppress(OSError):
            each.shutdown(way)
