"""`python -m gymcp.mcp_servers.sandbox [NAME]`: prints nothing if that sandbox works here, else one line saying why."""

from __future__ import annotations

import sys

from gymcp.errors import GymcpError
from gymcp.mcp_servers.sandbox import get_sandbox


def main() -> None:
    try:
        get_sandbox(sys.argv[1] if len(sys.argv) > 1 else "bwrap").check()
    except GymcpError as error:
        sys.exit(f"gymcp needs a sandbox: {error}")


if __name__ == "__main__":
    main()
