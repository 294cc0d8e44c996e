"""Guard of the files that are there already at a path that the user names to be written."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.store.run_folder import RUN_FILE, TRAINING_FILE

WRITTEN_STEMS = ("report", "export")
"""Beginnings of the names of files in a run folder that a verb may write again."""


def refuse_other_file(out: Path, suffixes: Collection[str], who: str) -> None:
    """Raise StoreError if writing `out` would replace a file that is not an earlier version of it.

    Such a file belongs to a run folder, or its name has none of the `suffixes` of the format. A link is fine: writing
    replaces the link, not the file that it names.
    """
    if out.is_symlink() or not out.is_file():
        return
    where = f"{who}: {out} is there already, and would be lost"
    folder = out.absolute().parent
    in_run = any((folder / name).exists() for name in (RUN_FILE, TRAINING_FILE))
    if in_run and out.name.partition(".")[0] not in WRITTEN_STEMS:
        raise StoreError(f"{where}: it is a file of the run; name another with --out")
    if out.suffix not in suffixes:
        raise StoreError(f"{where}: it is no {' or '.join(suffixes)} file; name another with --out")
