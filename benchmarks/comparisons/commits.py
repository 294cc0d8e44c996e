"""The proof that a registration was fixed before it was measured: its files are committed as they are."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from gymcp.errors import ConfigError


def check_committed(paths: Sequence[Path]) -> str:
    """Commit that holds every file as it is now. Raises ConfigError if one differs, or if there is no commit."""
    folder = paths[0].parent
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        raise ConfigError(f"{folder}: no git commit here, so nothing shows that a registration came before its runs")
    for path in paths:
        if _git(path.parent, "show", f"HEAD:./{path.name}") != path.read_bytes():
            raise ConfigError(f"{path}: is not committed as it is: commit it before the first measured run")
    return head.decode().strip()


def _git(folder: Path, *words: str) -> bytes | None:
    """Output of a git command; None if it fails, or if there is no git."""
    try:
        done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None
