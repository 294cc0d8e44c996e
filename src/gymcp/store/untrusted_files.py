"""Read files of a run folder that may be untrusted: no link is followed, and the size is bounded."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from gymcp.errors import StoreError

MAX_RECORD_BYTES = 16_000_000
"""Size of the longest JSON record, such as ``run.json``, that is read."""
MAX_LINES_BYTES = 512_000_000
"""Size of the longest file of JSON lines, such as ``metrics.jsonl``, that is read."""

_NO_LINK = "is a link, which is not followed"


def read_foreign(folder: Path, name: str, *, most_bytes: int = MAX_RECORD_BYTES) -> bytes:
    """The content of a file in a run folder.

    Raises FileNotFoundError if it is missing, StoreError if it is no regular file, is too long, or cannot be read.
    """
    where = f"run folder {folder}: {name}"
    try:
        handle = open_foreign(folder, name, os.O_RDONLY)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise StoreError(f"{where} cannot be read: {error.strerror}") from error
    with os.fdopen(handle, "rb") as file:
        try:
            content = file.read(most_bytes + 1)
        except OSError as error:
            raise StoreError(f"{where} cannot be read: {error.strerror}") from error
    if len(content) > most_bytes:
        raise StoreError(f"{where} is longer than {most_bytes:,} bytes: gymcp writes none that is")
    return content


def open_foreign(folder: Path, name: str, flags: int) -> int:
    """The descriptor of a file in a run folder; with ``O_CREAT`` the file is created if it is missing.

    Raises OSError, and StoreError if it is no regular file, so that nothing waits for a pipe or a device.
    """
    where = f"run folder {folder}: {name}"
    try:
        handle = os.open(folder / name, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC, 0o666)
    except OSError:
        refuse_link(folder, name)
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise StoreError(f"{where} is no file")
    return handle


def refuse_link(folder: Path, name: str) -> None:
    """Raise StoreError if the name exists and is a link or no regular file."""
    try:
        mode = os.lstat(folder / name).st_mode
    except OSError:
        return
    if stat.S_ISLNK(mode):
        raise StoreError(f"run folder {folder}: {name} {_NO_LINK}; copy the file that it names in its place")
    if not stat.S_ISREG(mode):
        raise StoreError(f"run folder {folder}: {name} is no file")
