"""A remote server for tests that counts the calls of all its clients."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REMOTE_SERVERS = Path(__file__).parent / "mcp_servers" / "remote_servers.py"


@contextmanager
def elsewhere() -> Iterator[str]:
    """URL of a counting server, in a process of its own."""
    with subprocess.Popen(
        [sys.executable, str(REMOTE_SERVERS)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.stdin.close()
        process.wait(30)
