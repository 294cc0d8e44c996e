"""Local servers that speak only streamable HTTP, as servers over standard streams.

The server and a bridge (`programs/http_bridge.py`) run in one sandbox with a loopback of its own, so any number of
episodes may use the same port. To the harness the bridge is the server: one process tree, one sandbox, one set of
limits. The bridge's messages are as untrusted as the server's.
"""

from __future__ import annotations

import functools
import json
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.programs import http_bridge
from gymcp.mcp_servers.sandbox import Launch, Mount
from gymcp.mcp_servers.spec import HttpPort, ServerSpec

BRIDGE_FOLDER = PurePosixPath("/srv/bridge")
_START = (
    *("python3", "-I", "-S", "-B", "-c"),
    f"import sys; sys.path.insert(0, {str(BRIDGE_FOLDER)!r}); from server_main import main; main()",
)
_MAX_ANSWER_LINES = 4
"""Size up to which the bridge passes on an answer, in limits of a line. Beyond one limit it is only an error of its
request."""
_PORT_TIME_SHARE = 0.8
"""Share of the time for a start after which the bridge itself reports that the port was not opened."""


def bridge_launch(spec: ServerSpec) -> Launch:
    """Launch of the server; for a server with a port, of the bridge in front of it. Raises ConfigError."""
    launch, http = spec.launch(), spec.http
    if http is None:
        return launch
    if fault := fault_of_http(spec):
        raise ConfigError(f"server '{spec.name}': {fault}")
    options = {
        "port": http.port,
        "path": http.path,
        "deadline_s": _PORT_TIME_SHARE * spec.start_timeout_s,
        "max_bytes": _MAX_ANSWER_LINES * spec.limits.line_bytes,
    }
    return replace(
        launch,
        argv=(*_START, json.dumps(options), *launch.argv),
        mounts=(Mount(source=_program(), target=BRIDGE_FOLDER), *launch.mounts),
        loopback=True,
        fork=None,
    )


def fault_of_http(spec: ServerSpec) -> str | None:
    """Reason why a server with a port cannot be started; None if there is none."""
    if spec.http is None:
        return None
    if not isinstance(spec.http, HttpPort) or not 1 <= spec.http.port <= 65535 or not spec.http.path.startswith("/"):
        return f"http={spec.http!r}: expected HttpPort(port=1 to 65535, path='/...')"
    if spec.network:
        return "http with network=True: it would listen where others can reach it; there is no way to have both"
    if not spec.argv:
        return "http without argv: the bridge starts the server, and does not know the image's own command; name it"
    return None


@functools.cache
def _program() -> Path:
    return native_server("bridge", http_bridge.__name__).mounts[0].source
