"""A Docker engine of a few lines that answers as a test says, and the sockets that a client has left open."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import BinaryIO

Answer = bytes | Callable[[], bytes]
"""The bytes to send; an empty answer closes the connection."""

NO_CONTENT = b"HTTP/1.1 204 No Content\r\n\r\n"
UPGRADED = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
_LIMIT_S = 60.0


def encode_json(content: object, status: str = "200 OK") -> bytes:
    body = json.dumps(content).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def encode_chunks(*lines: object, complete: bool = True) -> bytes:
    """One chunk per line of JSON, as the engine reports progress; an incomplete answer lacks its last chunk."""
    chunks = [json.dumps(line).encode() + b"\r\n" for line in lines]
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + b"0\r\n\r\n" * complete


STATE = {"Running": True, "ExitCode": 0, "OOMKilled": False, "Pid": 0}
ANSWERS = {
    "GET /version": encode_json({"ApiVersion": "1.43"}),
    "GET /info": encode_json({}),
    "GET /containers/json": encode_json([]),
    "POST /containers/create": encode_json({"Id": "abc"}, "201 Created"),
    "POST /containers/abc/attach": UPGRADED,
    "POST /containers/abc/start": NO_CONTENT,
    "GET /containers/abc/json": encode_json({"State": STATE}),
    "DELETE /containers/abc": NO_CONTENT,
    "POST /build": encode_chunks({"stream": "one"}, {"stream": "two"}),
    "GET /images/gone/json": encode_json({"message": "No such image"}, "404 Not Found"),
}


class FakeEngine:
    """Serves `ANSWERS`, or the answers given, by method and path without version and query."""

    def __init__(self, path: Path, answers: Mapping[str, Answer]) -> None:
        self.path = path
        self.requests: list[str] = []
        self._answers: dict[str, Answer] = {**ANSWERS, **answers}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(100)
        self._lock = threading.Lock()
        self._connections: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections, and wait for the threads that serve them."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._threads[0].join(_LIMIT_S)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads[1:]:
            thread.join(_LIMIT_S)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as stream, contextlib.suppress(OSError):
            while (request := _read_request(stream)) is not None:
                with self._lock:
                    self.requests.append(request)
                answer = self._answers[request]
                content = answer if isinstance(answer, bytes) else answer()
                if not content:
                    connection.shutdown(socket.SHUT_RDWR)
                connection.sendall(content)


def _read_request(stream: BinaryIO) -> str | None:
    """Method and path of the next request, whose body is read as well; None at the end of the connection."""
    words = stream.readline().decode().split()
    if not words:
        return None
    headers = {}
    while line := stream.readline().decode().strip():
        name, _, value = line.partition(":")
        headers[name.lower()] = value.strip()
    stream.read(int(headers.get("content-length", "0")))
    return f"{words[0]} {re.sub(r'^/v[0-9.]+', '', words[1]).partition('?')[0]}"


def count_open_sockets(path: Path) -> int:
    """Number of this process's unix sockets that are connected to this address, or made and not connected."""
    return sum(_is_open_to(int(entry.name), str(path)) for entry in Path("/proc/self/fd").iterdir())


def _is_open_to(fd: int, path: str) -> bool:
    with contextlib.ExitStack() as stack:
        try:
            copy = os.dup(fd)
        except OSError:  # the listing's own descriptor
            return False
        if not stat.S_ISSOCK(os.fstat(copy).st_mode):
            os.close(copy)
            return False
        one = stack.enter_context(socket.socket(fileno=copy))
        if one.family != socket.AF_UNIX:
            return False
        try:
            return bool(one.getpeername() == path)
        except OSError:
            return bool(one.getsockname() == "")
