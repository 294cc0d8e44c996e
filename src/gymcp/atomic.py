"""Files and folders that are whole or absent.

A folder may have been made by another user, so nothing in it is believed: a temporary file has a name that cannot be
foreseen, is made anew (``O_EXCL``) and relative to the open folder, and no link is followed. Where a link has the name
of the file that is replaced, the link is replaced.
"""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from gymcp.process_owner import unfinished

MAX_STEM = 200
"""Bytes of a file's name that its temporary name repeats; a name has at most 255."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces `path` by `data`, on the disk when this returns; a crash leaves the old file. Raises OSError."""
    with replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, which takes the place of `path` at the end of the context; an error leaves the old one.

    `mode`: of the file, less the umask. Raises OSError.
    """
    with _opened(path.parent) as folder:
        temporary = _temporary_name(path)
        try:
            with open_new(temporary, folder, mode=mode) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)
        os.fsync(folder)


@contextmanager
def replacing_folder(path: Path) -> Iterator[int]:
    """The descriptor of a new folder, which gets the name `path` at the end of the context; an error leaves nothing.

    Files are made in it with `open_new`. Raises OSError, also if `path` is there and is no empty folder.
    """
    with _opened(path.parent) as parent:
        temporary = _temporary_name(path)
        os.mkdir(temporary, 0o777, dir_fd=parent)  # less the umask, as every folder
        try:
            made = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                yield made
                os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            finally:
                os.close(made)
        finally:
            shutil.rmtree(temporary, ignore_errors=True, dir_fd=parent)


def open_new(name: str, folder: int, *, mode: int = 0o666) -> BinaryIO:
    """A file of that name to write, made now, in the folder of the descriptor. Raises OSError if there is one."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb")


def create_atomically(path: Path, data: bytes) -> None:
    """Makes `path`, whole or not at all. Raises FileExistsError if something has that name, a link included."""
    with _opened(path.parent) as folder:
        temporary = _temporary_name(path)
        try:
            with open_new(temporary, folder) as file:
                file.write(data)
            os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


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


def _temporary_name(path: Path) -> str:
    stem = os.fsdecode(os.fsencode(path.name)[:MAX_STEM])
    return f".{stem}.{secrets.token_hex(8)}.tmp"


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
