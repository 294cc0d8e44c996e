"""The host on a socket, from its start until it is told to end."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import dataclass

from gymcp.agents.endpoint.http_server import serve_application
from gymcp.aio import run_in_own_task
from gymcp.errors import ConfigError
from gymcp.host.app import is_loopback, make_app
from gymcp.host.host import HostLimits, keep_host
from gymcp.host.mcp_app import McpApp
from gymcp.host.runs import Runs
from gymcp.host.tokens import TOKEN_VARIABLE
from gymcp.mcp_servers.forkserver.channel import raise_file_limit
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox

LOOPBACK = "127.0.0.1"
_BACKLOG = 2048
"""Connections that may wait to be accepted: clients of many episodes come at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The address to listen on, and the token that clients need there."""

    address: str = LOOPBACK
    port: int = 0
    """0: a free one."""
    token: str | None = None
    """None: clients on this machine need none."""


def check_place(place: Place) -> None:
    """Raise ConfigError for an address that others can reach, without a token."""
    if place.token is None and not is_loopback(place.address):
        raise ConfigError(
            f"host: --listen {place.address}: others can reach it, so clients need a token: set ${TOKEN_VARIABLE}, or"
            " name a file with --token-file"
        )


def listen(place: Place) -> socket.socket:
    """A socket on which clients wait until `serve_host` serves them. Raises ConfigError."""
    try:
        family, _, _, _, address = socket.getaddrinfo(place.address, place.port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise ConfigError(f"host: --listen {place.address}: no address of a machine: {error.strerror}") from error
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        why = f"host: port {place.port} of {place.address} cannot be had: {error.strerror}"
        raise ConfigError(f"{why}; try --port 0, or another --listen") from error
    return listening


def format_address(listening: socket.socket) -> str:
    """The address of the host for clients."""
    address, port = listening.getsockname()[:2]
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


async def serve_host(
    runs: Runs,
    sandbox: Sandbox,
    limits: HostLimits,
    listening: socket.socket,
    token: str | None,
    ready: Callable[[str], None],
) -> None:
    """Serve until cancelled; then all live episodes are ended and recorded, and nothing of them is left.

    `ready` gets the address once requests are answered.
    """
    raise_file_limit()  # each live episode has a handful of pipes, sockets and process handles
    async with open_warm_sandbox(sandbox) as warm, keep_host(runs, warm, limits) as host:
        mcp = McpApp(host)
        app = make_app(host, mcp, token)
        async with run_in_own_task(mcp.run()), serve_application(app, [listening]):
            ready(format_address(listening))
            try:
                await asyncio.Event().wait()
            finally:
                await host.end()
