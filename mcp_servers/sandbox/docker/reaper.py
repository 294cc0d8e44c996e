"""Removes the containers of a harness that has ended, however it ended.

A process of its own, since a killed harness does nothing any more: it holds the reading end of a pipe whose writing
end only the harness has, and goes to work when that closes.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

from gymcp.errors import GymcpError
from gymcp.mcp_servers.sandbox.docker.engine_api import OWNER_LABEL, labelled, remove

_ROUNDS = 5
_ROUND_S = 0.5
"""A container that the engine was just making when the harness ended appears a little later."""


def start_reaper(owner: str) -> subprocess.Popen[bytes]:
    """Waits in the background; closing its standard input sets it to work."""
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
    quick = False
    for _ in range(_ROUNDS):
        with contextlib.suppress(GymcpError):
            found = labelled(f"{OWNER_LABEL}={sys.argv[1]}")
            for container in found:
                with contextlib.suppress(GymcpError):
                    remove(container["Id"])
            if not found and quick:
                return
            quick = not found
        time.sleep(_ROUND_S)


if __name__ == "__main__":
    main()
