"""The folder of an export: it replaces an earlier export, and nothing else, once it is complete."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymcp import __version__
from gymcp.errors import ConfigError, StoreError
from gymcp.process_owner import staging_folder
from gymcp.store.untrusted_files import read_foreign

MARK = "gymcp-export.json"
"""File by which a complete export is known."""
CONTENT = frozenset({MARK, "index.html", "static", "data", "runs"})
FORMAT = 1


@contextmanager
def replace_export(out: Path) -> Iterator[Path]:
    """A folder to fill, which becomes `out` at the end of the context; an error leaves what was there.

    Raises ConfigError if `out` holds anything but an earlier export, or cannot be written.
    """
    out = out.absolute()
    _refuse_other_content(out)
    try:
        with staging_folder(out) as staging:
            new = staging / "new"
            new.mkdir()
            yield new
            (new / MARK).write_text(json.dumps({"gymcp export": FORMAT, "gymcp": __version__}) + "\n", encoding="ascii")
            _refuse_other_content(out)  # it may have changed meanwhile
            if out.exists():
                out.rename(staging / "old")
            new.rename(out)
    except OSError as error:
        raise ConfigError(f"view: --export {out}: cannot be written: {error.strerror or error}") from error


def is_export(folder: Path) -> bool:
    """True if the folder holds a complete export."""
    try:
        mark = json.loads(read_foreign(folder, MARK, most_bytes=10_000))
    except (OSError, StoreError, ValueError, RecursionError):
        return False
    return isinstance(mark, dict) and "gymcp export" in mark


def _refuse_other_content(out: Path) -> None:
    if out.is_symlink() or (out.exists() and not out.is_dir()):
        raise ConfigError(f"view: --export {out}: is no folder; name a new one, or an earlier export")
    try:
        names = {entry.name for entry in out.iterdir()} if out.exists() else set()
    except OSError as error:
        raise ConfigError(f"view: --export {out}: cannot be read: {error.strerror or error}") from error
    if names and not is_export(out):
        raise ConfigError(f"view: --export {out}: is not empty and holds no export; name a new folder")
    if other := sorted(names - CONTENT):
        raise ConfigError(
            f"view: --export {out}: holds other files beside an earlier export, which would be lost:"
            f" {', '.join(other[:5])}; move them, or name a new folder"
        )
