"""Ports for servers that are started later, or again."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator

PORTS = range(30_000, 32_768)
"""Below Linux's range for connections and for servers that ask for any port, and above those of `gymcp serve`."""


def find_free_port() -> int:
    """A free port that the kernel gives to no socket by itself, so that it is still free some seconds later."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port
    raise OSError(f"no port from {PORTS.start} to {PORTS.stop - 1} is free")


@contextlib.contextmanager
def refusing_port() -> Iterator[int]:
    """A port at which every connection is refused: it is taken, and nothing listens there."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
