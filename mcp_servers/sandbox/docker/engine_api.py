"""The Docker engine of this user, by Docker's SDK, which is imported when the engine is first asked.

The SDK takes 0.1 s to import, so the look for leftovers at every start of the command line asks `was_used` first. A
client serves one thread for one use: threads and forks must not share its connections.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from gymcp.errors import EnvInfraError, SandboxUnavailable
from gymcp.paths import gymcp_home

OWNER_LABEL = "gymcp.owner"
USER_LABEL = "gymcp.user"
PIDS_LABEL = "gymcp.pids"
"""Label with the PID namespace of the owner's process id: whether a process lives is only known in its namespace."""
TIMEOUT_S = 60.0
BUILD_TIMEOUT_S = 1800.0
"""Seconds that a build may take without any output."""
_DEFAULT = Path("/var/run/docker.sock")
_ATTACH = {"stream": 1, "stdin": 1, "stdout": 1, "stderr": 1}
_API_VERSIONS: dict[Path, str] = {}
"""Socket -> version of the API of the engine there."""
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


@contextlib.contextmanager
def open_engine(timeout_s: float = TIMEOUT_S) -> Iterator[Any]:
    """A ``docker.APIClient`` of this user's engine, with which all its connections are closed.

    `timeout_s` limits each wait for the engine. The client's errors come out as EngineError.
    """
    sdk, path = _sdk(), socket_path()
    try:
        if path not in _API_VERSIONS:
            _API_VERSIONS[path] = sdk.find_api_version(path, timeout_s)
        with sdk.EngineClient(path, timeout_s, _API_VERSIONS[path]) as client:
            yield client
    except sdk.API_ERRORS as error:
        raise EngineError(f"docker: {str(error.explanation or error).strip()}", error.status_code or 0) from error
    except sdk.CONNECTION_ERRORS as error:
        raise EngineError(f"docker: {sdk.describe(error, path)}") from error


@functools.cache
def _sdk() -> Any:
    return importlib.import_module("gymcp.mcp_servers.sandbox.docker.engine_client")


def check_progress(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The engine's progress messages. Raises EngineError at the first that reports an error."""
    for message in messages:
        if "error" in message:
            raise EngineError(f"docker: {str(message['error']).strip()}")
        yield message


def parse_progress(text: str) -> list[dict[str, Any]]:
    """Progress messages from lines of JSON."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def attach(client: Any, container: str) -> socket.socket:
    """Non-blocking connection to the standard streams of a container that has not been started yet.

    Bytes written to it go to standard input; bytes read from it are frames of standard output and standard error. The
    caller closes it; the client closes the descriptor that it was copied from.
    """
    stream = client.attach_socket(container, params=dict(_ATTACH))
    connection = socket.socket(fileno=os.dup(stream.fileno()))
    connection.setblocking(False)
    return connection


def kill(container: str) -> None:
    """Kill a container; do nothing if it has ended or is gone. Raises EngineError."""
    with _unless_gone(), open_engine() as client:
        client.kill(container)


def remove(container: str) -> None:
    """Kill a container and remove it with its volumes; do nothing if it is gone. Raises EngineError."""
    with _unless_gone(), open_engine() as client:
        client.remove_container(container, v=True, force=True)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except EngineError as error:
        if error.status not in (404, 409):  # 409: not running, or another process is removing it
            raise


def find_containers(label: str, *, timeout_s: float = TIMEOUT_S) -> list[dict[str, Any]]:
    """The engine's descriptions of the containers with a label (``NAME`` or ``NAME=VALUE``). Raises EngineError."""
    with open_engine(timeout_s) as client:
        return list(client.containers(all=True, filters={"label": [label]}))


def engine_info() -> dict[str, Any]:
    """The engine's description of itself. Raises SandboxUnavailable if no engine can be reached."""
    try:
        with open_engine(10.0) as client:
            info: dict[str, Any] = client.info()
    except EngineError as error:
        raise SandboxUnavailable(f"{error}: {_REMEDY}") from error
    return info


def record_use() -> None:
    """Note in the cache that gymcp has started containers, for `was_used`."""
    with contextlib.suppress(OSError):  # in a cache that cannot be written, `gymcp clean` finds what is left
        _used().parent.mkdir(parents=True, exist_ok=True)
        _used().touch()


def was_used() -> bool:
    """True if a container was ever started with this cache; asks no engine."""
    return _used().exists()


def _used() -> Path:
    return gymcp_home() / "docker-used"
