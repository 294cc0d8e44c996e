"""The Docker engine of this user, by Docker's SDK, which is imported when the engine is first asked.

The SDK takes 0.1 s to import, so the look for leftovers at every start of the command line asks `was_used` first. A
client serves one thread for one use: connections of a pool must not be shared by threads and forks.
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
    """A ``docker.APIClient`` of this user's engine, closed at the end; its errors come out as EngineError."""
    sdk, path = _sdk(), socket_path()
    try:
        client = sdk.APIClient(base_url=f"unix://{path}", version=_api_version(path), timeout=timeout_s)
        try:
            yield client
        finally:
            client.close()
    except sdk.errors.APIError as error:
        raise EngineError(f"docker: {str(error.explanation or error).strip()}", error.status_code or 0) from error
    except (OSError, sdk.errors.DockerException) as error:  # the SDK's connection errors are OSErrors
        raise EngineError(f"docker: no engine answers at {path} ({_reason(error)})") from error


@functools.cache
def _sdk() -> Any:
    return importlib.import_module("docker")


@functools.cache
def _api_version(path: Path) -> str:
    """The newest version of the API that both the engine and the SDK know."""
    client = _sdk().APIClient(base_url=f"unix://{path}", version="auto", timeout=TIMEOUT_S)
    with contextlib.closing(client):
        return str(client.api_version)


def _reason(error: BaseException) -> str:
    """The system's words for the error at the bottom of a chain of wrapped errors."""
    reason = getattr(error, "strerror", None)
    cause = error.__cause__ or error.__context__
    return reason or (_reason(cause) if cause is not None else str(error) or type(error).__name__)


def check_progress(messages: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The engine's progress messages. Raises EngineError at the end if one of them reports an error.

    All are read in any case: the SDK does not close the connection of a stream that is left half read.
    """
    failure = ""
    for message in messages:
        failure = failure or str(message.get("error", ""))
        yield message
    if failure:
        raise EngineError(f"docker: {failure.strip()}")


def parse_progress(text: str) -> list[dict[str, Any]]:
    """Progress messages from lines of JSON."""
    return [json.loads(line) for line in text.splitlines() if line.strip()]


def attach(client: Any, container: str) -> socket.socket:
    """Non-blocking connection to the standard streams of a container that has not been started yet.

    Bytes written to it go to standard input; bytes read from it are frames of standard output and standard error. It is
    a copy of the SDK's descriptor.
    """
    stream = client.attach_socket(container, params=_ATTACH)
    connection = socket.socket(fileno=os.dup(stream.fileno()))
    stream._response.close()  # else the SDK leaves its own descriptor to the garbage collector
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
    _used().parent.mkdir(parents=True, exist_ok=True)
    _used().touch()


def was_used() -> bool:
    """True if a container was ever started with this cache; asks no engine."""
    return _used().exists()


def _used() -> Path:
    return gymcp_home() / "docker-used"
