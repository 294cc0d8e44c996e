"""Path of the folder for files that outlive a run. Importing creates nothing; each call reads the environment."""

from __future__ import annotations

import os
from pathlib import Path


def gymcp_home() -> Path:
    """The cache folder: ``$GYMCP_HOME``, else ``gymcp`` in the user's cache folder."""
    if home := os.environ.get("GYMCP_HOME"):
        return Path(home).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).absolute() if cache else Path.home() / ".cache") / "gymcp"


def copies_folder() -> Path:
    """Folder in the cache for files of another machine, at their paths there; a path in it tells no content."""
    return gymcp_home() / "copies"
