"""Client of the Docker engine's API over its unix socket: one connection per request, blocking, standard library only.

Docker's own Python SDK has three drawbacks. It takes 0.1 s to import, which every start of the command line would pay
because it looks for leftovers; it pools connections, which threads and forks must not share; and it does not close the
sockets that it attaches.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from gymcp.errors import EnvInfraError, SandboxUnavailable

OWNER_LABEL = "gymcp.owner"
USER_LABEL = "gymcp.user"
PIDS_LABEL = "gymcp.pids"
"""Label with the PID namespace of the owner's process id: whether a process lives is only known in its namespace."""
TIMEOUT_S = 60.0
BUILD_TIMEOUT_S = 1800.0
"""Seconds that a build may take without any output."""
_DEFAULT = Path("/var/run/docker.sock")
_REMEDY = (
    "install and start one (Debian, Ubuntu: sudo apt-get install docker.io; sudo systemctl start docker) "
    "and let this user reach it; or use --sandbox bwrap"
)


class EngineError(EnvInfraError):
    """The engine refused, or went away."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status
        """HTTP status; 0 if there was no answer."""


def socket_path() -> Path:
    """Socket of this user's engine: ``$DOCKER_HOST``, else the system's or the user's own.

    Raises SandboxUnavailable if ``$DOCKER_HOST`` is an engine on another machine.
    """
    host = os.environ.get("DOCKER_HOST")
    if host:
        if not host.startswith("unix://"):
            raise SandboxUnavailable(
                f"docker: DOCKER_HOST={host}: servers need folders of this machine, so the engine must be on it, "
                "at a unix:// address; unset DOCKER_HOST, or use --sandbox bwrap"
            )
        return Path(host.removeprefix("unix://"))
    own = Path(os.environ.get("XDG_RUNTIME_DIR", f"/run/user/{os.getuid()}"), "docker.sock")
    return own if own.exists() and not os.access(_DEFAULT, os.W_OK) else _DEFAULT


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("docker", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def request(
    method: str,
    path: str,
    *,
    query: Mapping[str, str | int] | None = None,
    content: Mapping[str, Any] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> Any:
    """The engine's answer, decoded; None if it is empty. Raises EngineError."""
    with _open_response(method, path, query, _encode_json(content), _JSON, timeout_s) as response:
        body = response.read()
    return json.loads(body) if body else None


def stream(path: str, *, query: Mapping[str, str | int], archive: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Send a tar archive and yield the engine's progress messages. Raises EngineError."""
    with _open_response(
        "POST", path, query, archive, {"Content-Type": "application/x-tar"}, BUILD_TIMEOUT_S
    ) as response:
        for line in response:
            message = json.loads(line)
            if "error" in message:
                raise EngineError(f"docker: {message['error'].strip()}")
            yield message


_JSON = {"Content-Type": "application/json"}


def _encode_json(content: Mapping[str, Any] | None) -> bytes | None:
    return None if content is None else json.dumps(content).encode()


@contextlib.contextmanager
def _open_response(
    method: str,
    path: str,
    query: Mapping[str, str | int] | None,
    body: bytes | Iterable[bytes] | None,
    headers: Mapping[str, str],
    timeout_s: float,
) -> Iterator[http.client.HTTPResponse]:
    connection = _Connection(socket_path(), timeout_s)
    target = quote(path) + (f"?{urlencode(query)}" if query else "")
    try:
        chunked = body is not None and not isinstance(body, bytes)
        connection.request(method, target, body, dict(headers), encode_chunked=chunked)
        response = connection.getresponse()
        if response.status >= 400:
            raise EngineError(_refusal_message(response.read()), response.status)
        yield response
    except (OSError, http.client.HTTPException) as error:
        raise EngineError(f"docker: no engine answers at {socket_path()} ({_reason(error)})") from error
    finally:
        connection.close()


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _refusal_message(body: bytes) -> str:
    try:
        message = json.loads(body)["message"]
    except (ValueError, KeyError, TypeError):
        message = body.decode(errors="replace")
    return f"docker: {message.strip()}"


def attach(container: str) -> socket.socket:
    """Non-blocking connection to the standard streams of a container that has not been started yet.

    Bytes written to it go to standard input; bytes read from it are frames of standard output and standard error.
    Raises EngineError.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(TIMEOUT_S)
        connection.connect(str(socket_path()))
        connection.sendall(
            f"POST /containers/{quote(container)}/attach?stream=1&stdin=1&stdout=1&stderr=1 HTTP/1.1\r\n"
            "Host: docker\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n".encode()
        )
        head = bytearray()
        while not head.endswith(b"\r\n\r\n"):
            if not (byte := connection.recv(1)):  # one byte: the rest belongs to the container
                raise EngineError("docker: the engine closed the connection to a new container")
            head += byte
        status = int(head.split(maxsplit=2)[1])
        if status not in (101, 200):
            raise EngineError(f"docker: cannot attach to a container: {head.decode(errors='replace')}", status)
    except OSError as error:
        connection.close()
        raise EngineError(f"docker: no engine answers at {socket_path()} ({_reason(error)})") from error
    except EngineError:
        connection.close()
        raise
    connection.setblocking(False)
    return connection


def kill(container: str) -> None:
    """Kill a container; do nothing if it has ended or is gone. Raises EngineError."""
    _unless_gone("POST", f"/containers/{container}/kill")


def remove(container: str) -> None:
    """Kill a container and remove it with its volumes; do nothing if it is gone. Raises EngineError."""
    _unless_gone("DELETE", f"/containers/{container}", {"force": 1, "v": 1})


def _unless_gone(method: str, path: str, query: Mapping[str, str | int] | None = None) -> None:
    try:
        request(method, path, query=query)
    except EngineError as error:
        if error.status not in (404, 409):  # 409: not running, or another process is removing it
            raise


def find_containers(label: str, *, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """The engine's descriptions of the containers with a label (``NAME`` or ``NAME=VALUE``). Raises EngineError."""
    filters = json.dumps({"label": [label]})
    containers = request("GET", "/containers/json", query={"all": 1, "filters": filters}, timeout_s=timeout_s)
    return list(containers or [])


def engine_info() -> dict[str, Any]:
    """The engine's description of itself. Raises SandboxUnavailable if no engine can be reached."""
    try:
        info: dict[str, Any] = request("GET", "/info", timeout_s=10.0)
    except EngineError as error:
        raise SandboxUnavailable(f"{error}: {_REMEDY}") from error
    return info
