"""Launches of servers with services: one program inside the sandbox starts them all (`programs/services.py`)."""

from __future__ import annotations

import functools
import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.programs import services
from gymcp.mcp_servers.sandbox import Launch, Mount
from gymcp.mcp_servers.services import MAX_SERVICES, Service
from gymcp.mcp_servers.spec import ServerSpec

SERVICES_FOLDER = PurePosixPath("/srv/services")
_START = (
    *("python3", "-I", "-S", "-B", "-c"),
    f"import sys; sys.path.insert(0, {str(SERVICES_FOLDER)!r}); from server_main import main; main()",
)


def add_services(spec: ServerSpec, launch: Launch) -> Launch:
    """The launch with the server's services before it. Raises ConfigError."""
    if not spec.services:
        return launch
    if fault := fault_of_services(spec):
        raise ConfigError(f"server '{spec.name}': {fault}")
    rows = [{**asdict(each), "env": dict(each.env)} for each in spec.services]
    return replace(
        launch,
        argv=(*_START, json.dumps(rows), *launch.argv),
        mounts=(Mount(source=_program(), target=SERVICES_FOLDER), *launch.mounts),
        loopback=True,
        fork=None,
    )


def fault_of_services(spec: ServerSpec) -> str | None:
    """Reason why a server with services cannot be started; None if there is none."""
    if not spec.services:
        return None
    if not isinstance(spec.services, tuple) or not all(isinstance(each, Service) for each in spec.services):
        return "its services must be a tuple of gymcp.mcp_servers.services.Service"
    if len(spec.services) > MAX_SERVICES:
        return f"{len(spec.services)} services; the most is {MAX_SERVICES}"
    name, times = Counter(each.name for each in spec.services).most_common(1)[0]
    if times > 1:
        return f"two services are named '{name}'"
    if spec.url is not None:
        return "services beside a server that runs elsewhere: nothing is started here"
    if spec.network:
        return "services with network=True: they would listen where others can reach them; there is no way to have both"
    if spec.fork is not None:
        return "services with a forked server: a fork would not have them; leave out fork, or start='fork'"
    if not spec.argv:
        return "services without argv: what starts them does not know the image's own command; name it"
    return None


@functools.cache
def _program() -> Path:
    return native_server("services", services.__name__).mounts[0].source
