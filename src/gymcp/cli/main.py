"""Console script. It imports almost nothing, so that Ctrl-C works while the rest is being imported."""

from __future__ import annotations

import importlib
import sys

from gymcp.cli.exit_codes import INTERRUPTED


def main() -> None:
    """Run the command line; an interrupt gives exit code 130 and no traceback."""
    try:
        importlib.import_module("gymcp.cli.app").run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
