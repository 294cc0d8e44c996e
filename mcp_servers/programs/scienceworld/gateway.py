"""A client of the Py4J gateway in which the simulator's jar wraps itself: method calls over a local socket.

A request is a line for each part: the command, the object, the method, the arguments, the end. An answer is one line.
Objects of the simulator stay there; `Reference` names one. Standard library only.

Source: py4j 0.10, py4j/protocol.py.
"""

from __future__ import annotations

import socket
from typing import Any, NamedTuple

HOST = "127.0.0.1"
PORT = 25333
_ENTRY_POINT = "t"
_REFERENCES = "rltgha"
"""Types of answers that name an object: plain object, list, array, iterator, set, map."""
_CHUNK_BYTES = 262_144


class Reference(NamedTuple):
    """An object inside the simulator."""

    name: str


Value = Any
"""None, a truth value, a number, a text, or a `Reference`."""


class SimulatorError(Exception):
    """The simulator raised, or hung up."""


class Gateway:
    """One connection. Calls are made one at a time."""

    def __init__(self, port: int = PORT) -> None:
        self._socket = socket.create_connection((HOST, port))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._is_waiting = False

    def call(self, method: str, *arguments: Value, on: Value = None) -> Value:
        """The answer of a method of the object `on`, or of the entry point. Raises SimulatorError."""
        if self._is_waiting:  # its answer would be taken for that of this call
            raise SimulatorError("the call before was cut off")
        target = on.name if isinstance(on, Reference) else _ENTRY_POINT
        lines = ["c", target, method, *map(_encode, arguments), "e", ""]
        self._is_waiting = True
        self._socket.sendall("\n".join(lines).encode())
        line = self._read_line()
        self._is_waiting = False
        return _decode(line)

    def _read_line(self) -> str:
        chunks: list[bytes] = []
        while not chunks or not chunks[-1].endswith(b"\n"):
            # without this, the last part of a long answer waits 40 ms for an acknowledgement
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)
            chunk = self._socket.recv(_CHUNK_BYTES)
            if not chunk:
                raise SimulatorError("the simulator has ended")
            chunks.append(chunk)
        return b"".join(chunks).decode()


def _encode(value: Value) -> str:
    if isinstance(value, bool):
        return f"b{str(value).lower()}"
    if isinstance(value, int):
        return f"i{value}"
    if isinstance(value, Reference):
        return f"r{value.name}"
    escaped = str(value).replace("\\", "\\\\").replace("\r", "\\r").replace("\n", "\\n")
    return f"s{escaped}"


def _decode(line: str) -> Value:
    """Value of an answer: ``!`` and ``y`` or an error mark, a type, the value. Raises SimulatorError."""
    status, kind, text = line[1:2], line[2:3], line[3:].rstrip("\n")
    if status != "y":
        raise SimulatorError(_unescape(text) or "the simulator raised")
    if kind == "s":
        return _unescape(text)
    if kind in ("i", "L"):
        return int(text)
    if kind == "d":
        return float(text)
    if kind == "b":
        return text == "true"
    return Reference(text) if kind and kind in _REFERENCES else None


def _unescape(text: str) -> str:
    parts = text.split("\\\\")
    return "\\".join(part.replace("\\n", "\n").replace("\\r", "\r") for part in parts)
