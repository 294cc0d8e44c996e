"""Boundary to gymcp's cache folder."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymcp.errors import UsageError
from gymcp.paths import gymcp_home


@contextmanager
def cache_errors() -> Iterator[None]:
    """Turn an OSError over the cache folder into one UsageError that says what to set; other errors pass unchanged."""
    try:
        yield
    except OSError as error:
        home = gymcp_home()
        path = Path(error.filename) if isinstance(error.filename, str) else home  # a full disk names no file
        if not path.is_relative_to(home) and not home.is_relative_to(path):
            raise
        raise UsageError(
            f"cache {home}: cannot be used: {error.strerror or error}; set GYMCP_HOME to a folder that can be written"
        ) from error
