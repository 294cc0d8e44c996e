"""Paths of the folder for files that outlive a run, and of the pages of the documentation.

Importing creates nothing; each call reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path


def gymcp_home() -> Path:
    """The cache folder: ``$GYMCP_HOME``, else ``gymcp`` in the user's cache folder."""
    if home := os.environ.get("GYMCP_HOME"):
        return Path(home).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache).absolute() if cache else Path.home() / ".cache") / "gymcp"


def find_page(name: str) -> Path:
    """The page of the documentation with this name, such as ``judge.md``: a wheel has the pages, too."""
    return (Path(__file__).parent / "docs" / name).resolve()


def copies_folder() -> Path:
    """Folder in the cache for files of another machine, at their paths there; a path in it tells no content."""
    return gymcp_home() / "copies"


def restore_path(path: str) -> str:
    """The path that a file of `copies_folder` has on its own machine; any other path as it is."""
    for folder in (copies_folder(), copies_folder().resolve()):
        if Path(path).is_relative_to(folder):
            return "/" + "/".join(Path(path).relative_to(folder).parts[1:])
    return path
