"""The console script. It imports next to nothing, so that Ctrl-C is answered while the rest is being imported."""

from __future__ import annotations

import importlib
import sys

INTERRUPTED = 130


def main() -> None:
    """Runs the command line; an interrupt is exit code 130 and no traceback."""
    try:
        importlib.import_module("gymcp.cli.app").run()
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
