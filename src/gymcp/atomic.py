"""Files and folders that are whole or absent."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from gymcp.owners import unfinished


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`, on the disk when this returns; a crash leaves the old file. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def is_leftover(name: str) -> bool:
    """True for the file that a crash inside `write_atomically` leaves."""
    return name.startswith(".") and name.endswith(".tmp")


def open_to_servers(folder: Path) -> None:
    """Lets every user read it, whatever the umask was: a server need not be the user who installs. Raises OSError."""
    folder.chmod(0o755)
    for where, folders, files in os.walk(folder):
        for path in (Path(where, name) for name in (*folders, *files)):
            mode = stat.S_IMODE(path.lstat().st_mode)
            wanted = mode | (0o055 if mode & 0o100 else 0o044)
            if wanted != mode and not path.is_symlink():
                path.chmod(wanted)


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, made by `make` where it is not there yet: all of it or nothing, and by any number of processes."""
    if folder.is_dir():
        return folder
    with unfinished(folder) as made:
        make(made)
        open_to_servers(made)
        try:
            made.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same content
                raise
    return folder
