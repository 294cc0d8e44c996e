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
from gymcp.types import Json

MARK = "gymcp-export.json"
"""File by which a complete export is known."""
CONTENT = frozenset({MARK, "index.html", "static", "data", "runs"})
FORMAT = 1
RUN, PAIR, LIST = "run", "pair", "list"
"""Contents of the first page of an export."""


@contextmanager
def replace_export(out: Path, *, shows: str) -> Iterator[Path]:
    """A folder to fill, which becomes `out` at the end of the context; an error leaves what was there.

    `shows`: the content of its first page: `RUN`, or another word.
    Raises ConfigError if `out` holds anything but an earlier export, or cannot be written.
    """
    out = out.absolute()
    _refuse_other_content(out)
    try:
        with staging_folder(out) as staging:
            new = staging / "new"
            new.mkdir()
            yield new
            mark = {"gymcp export": FORMAT, "gymcp": __version__, "shows": shows}
            (new / MARK).write_text(json.dumps(mark) + "\n", encoding="ascii")
            _refuse_other_content(out)  # it may have changed meanwhile
            if out.exists():
                out.rename(staging / "old")
            new.rename(out)
    except OSError as error:
        raise ConfigError(f"view: --export {out}: cannot be written: {error.strerror or error}") from error


def is_export(folder: Path) -> bool:
    """True if the folder holds a complete export."""
    return bool(_read_mark(folder))


def shows_one_run(folder: Path) -> bool:
    """True if the folder holds a complete export whose first page is that of a run."""
    return _read_mark(folder).get("shows") == RUN


def _read_mark(folder: Path) -> dict[str, Json]:
    """The mark of the export in a folder; {} if there is none."""
    try:
        mark = json.loads(read_foreign(folder, MARK, most_bytes=10_000))
    except (OSError, StoreError, ValueError, RecursionError):
        return {}
    return mark if isinstance(mark, dict) and "gymcp export" in mark else {}


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
