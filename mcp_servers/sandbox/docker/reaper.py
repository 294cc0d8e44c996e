"""Removes the containers of a harness that has ended in any way.

The reaper is a separate process, because a killed harness cannot clean up. It holds the reading end of a pipe whose
writing end only the harness has, and starts removing when the pipe closes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

from gymcp.errors import GymcpError
from gymcp.mcp_servers.sandbox.docker.engine_api import OWNER_LABEL, find_containers, remove

_ROUNDS = 5
_ROUND_PERIOD_S = 0.5
"""Seconds between rounds: a container that the engine was creating when the harness ended appears a little later."""


def start_reaper(owner: str) -> subprocess.Popen[bytes]:
    """Start the reaper in the background; it removes the owner's containers when its standard input is closed."""
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, owner],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd="/",
        start_new_session=True,  # Ctrl-C is for the harness
    )


def main() -> None:
    sys.stdin.buffer.read()
    was_empty = False
    for _ in range(_ROUNDS):
        with contextlib.suppress(GymcpError):
            containers = find_containers(f"{OWNER_LABEL}={sys.argv[1]}")
            for container in containers:
                with contextlib.suppress(GymcpError):
                    remove(container["Id"])
            if not containers and was_empty:
                return
            was_empty = not containers
        time.sleep(_ROUND_PERIOD_S)


if __name__ == "__main__":
    main()
