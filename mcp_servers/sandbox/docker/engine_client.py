"""Docker's SDK as gymcp uses it: each request ends in time, and no connection is left to the garbage collector.

`engine_api` imports this module when the engine is first asked: the SDK takes 0.1 s to import.
"""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import docker
import requests
import urllib3
from docker.transport import unixconn

_OLDEST_API_VERSION = "1.24"
_POOL = "engine"

API_ERRORS = (docker.errors.APIError,)
"""The engine has refused a request."""
CONNECTION_ERRORS = (
    OSError,  # also errors of requests
    docker.errors.DockerException,
    docker.errors.StreamParseError,
    urllib3.exceptions.HTTPError,
    KeyError,  # answers that lack what the SDK expects in each
    TypeError,
)
"""No engine answers, or its answer cannot be read."""


class _Connection(unixconn.UnixHTTPConnection):  # type: ignore[misc]
    """A connection to the engine."""

    def connect(self) -> None:
        """Connect, or close the socket: the SDK's own method leaves it open if no engine listens."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(self.timeout)
            connection.connect(self.unix_socket)
        except BaseException:
            connection.close()
            raise
        self.sock = connection


class _ConnectionPool(unixconn.UnixHTTPConnectionPool):  # type: ignore[misc]
    def _new_conn(self) -> _Connection:
        return _Connection(self.base_url, self.socket_path, self.timeout)


class _Adapter(unixconn.UnixHTTPAdapter):  # type: ignore[misc]
    """Sends all requests of a client over one pool; the SDK's own adapter connects anew for each address."""

    def get_connection(self, url: str, proxies: object = None) -> _ConnectionPool:
        pool: _ConnectionPool | None = self.pools.get(_POOL)
        if pool is None:
            pool = _ConnectionPool(url, self.socket_path, self.timeout, maxsize=self.max_pool_size)
            self.pools[_POOL] = pool
        return pool


class EngineClient(docker.APIClient):  # type: ignore[misc]
    """Client for one thread and one use. Closing it closes all its connections, also those of streams half read.

    The SDK's own client closes idle connections only.
    """

    def __init__(self, path: Path, timeout_s: float, version: str = _OLDEST_API_VERSION) -> None:
        self._responses: list[requests.Response] = []
        try:
            super().__init__(base_url=f"unix://{path}", version=version, timeout=timeout_s)
        except (AttributeError, TypeError, ValueError) as error:
            file = docker.utils.config.find_config_file()
            raise docker.errors.InvalidConfigFile(f"{file} is not a configuration of Docker ({error})") from error
        self.trust_env = False  # an engine on this machine has no proxy and no password
        self._custom_adapter = _Adapter(f"http+unix://{path}", timeout_s)
        self.mount("http+docker://", self._custom_adapter)

    def send(self, request: requests.PreparedRequest, **options: Any) -> requests.Response:
        """Send a request, with the client's time limit also if the SDK sets none (attach, pull, import)."""
        options["timeout"] = options.get("timeout") or self.timeout
        response: requests.Response = super().send(request, **options)
        self._responses.append(response)
        return response

    def close(self) -> None:
        for response in self._responses:
            response.close()
        super().close()


def find_api_version(path: Path, timeout_s: float) -> str:
    """Version of the API that the engine offers. Raises CONNECTION_ERRORS."""
    with EngineClient(path, timeout_s) as client:
        return str(client.version(api_version=False)["ApiVersion"])


def describe(error: BaseException, path: Path) -> str:
    """Message for one of CONNECTION_ERRORS: the system's words at the bottom of the chain of wrapped errors, if any."""
    if isinstance(error, docker.errors.InvalidConfigFile):
        return str(error)
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None:
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    for found in reversed(chain):
        if isinstance(found, OSError) and not isinstance(found, requests.RequestException):
            return f"no engine answers at {path} ({found.strerror or found})"
    return f"the answer at {path} breaks off, or is no Docker engine's ({type(error).__name__}: {error})"
