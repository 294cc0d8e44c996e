"""The command with the packages of PYTHONPATH: a fork of the server of commands else knows only those of its server."""

from __future__ import annotations

import importlib
import os
import sys

from gymcp.cli.main import main as run


def main() -> None:
    sys.path[1:1] = os.environ["PYTHONPATH"].split(":")
    importlib.invalidate_caches()
    run()
