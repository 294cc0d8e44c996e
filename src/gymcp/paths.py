"""Where gymcp keeps what outlives a run. Nothing is created here; the environment is read when called."""

from __future__ import annotations

import os
from pathlib import Path


def gymcp_home() -> Path:
    """The cache folder: ``$GYMCP_HOME``, else ``gymcp`` in the user's cache folder."""
    if home := os.environ.get("GYMCP_HOME"):
        return Path(home).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).absolute() if cache else Path.home() / ".cache") / "gymcp"
