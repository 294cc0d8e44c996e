"""Write files and folders that are whole or absent.

A folder may have been made by another user, so its content is not trusted: a temporary file has an unpredictable name
and is created (``O_EXCL``) relative to the open folder, and no link is followed. If the name of the file to replace is
a link, the link is replaced.
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

from gymcp.errors import UsageError
from gymcp.paths import gymcp_home
from gymcp.process_owner import staging_folder

MAX_STEM_BYTES = 200
"""Bytes of a file's name that its temporary name repeats; a file name has at most 255 bytes."""


def write_atomically(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, which is on the disk on return; a crash leaves the old file. Raises OSError."""
    with replace_file(path) as file:
        file.write(data)


@contextmanager
def replace_file(path: Path, *, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file to write, which replaces `path` at the end of the context; an error leaves the old file.

    `mode`: permission bits of the file, less the umask. Raises OSError.
    """
    with _open_folder(path.parent) as folder:
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
def replace_folder(path: Path) -> Iterator[int]:
    """The descriptor of a new folder, which becomes `path` at the end of the context; an error leaves nothing.

    `open_new` creates files in it. Raises OSError, also if `path` exists and is not an empty folder.
    """
    with _open_folder(path.parent) as parent:
        temporary = _temporary_name(path)
        os.mkdir(temporary, 0o777, dir_fd=parent)  # less the umask, as every folder
        try:
            descriptor = os.open(temporary, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
            try:
                yield descriptor
                os.rename(temporary, path.name, src_dir_fd=parent, dst_dir_fd=parent)
            finally:
                os.close(descriptor)
        finally:
            shutil.rmtree(temporary, ignore_errors=True, dir_fd=parent)


def open_new(name: str, folder: int, *, mode: int = 0o666) -> BinaryIO:
    """A new file of that name to write, in the folder of the descriptor. Raises OSError if the name exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(name, flags, mode, dir_fd=folder), "wb")


def create_atomically(path: Path, data: bytes) -> None:
    """Create `path`, whole or not at all. Raises FileExistsError if the name exists, also as a link."""
    with _open_folder(path.parent) as folder:
        temporary = _temporary_name(path)
        try:
            with open_new(temporary, folder) as file:
                file.write(data)
            os.link(temporary, path.name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary, dir_fd=folder)


def is_leftover(name: str) -> bool:
    """True for the name of a file that a crash inside `write_atomically` leaves."""
    return name.startswith(".") and name.endswith(".tmp")


def make_world_readable(folder: Path) -> None:
    """Let every user read the folder, whatever the umask: a server may run as another user. Raises OSError."""
    folder.chmod(0o755)
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            mode = stat.S_IMODE(path.lstat().st_mode)
            readable = mode | (0o055 if mode & 0o100 else 0o044)
            if readable != mode and not path.is_symlink():
                path.chmod(readable)


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """The folder; if it is missing, `make` fills it: whole or not at all, also if several processes do so."""
    if folder.is_dir():
        return folder
    with staging_folder(folder) as staging:
        make(staging)
        make_world_readable(staging)
        try:
            staging.rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster, with the same content
                raise
    return folder


def _temporary_name(path: Path) -> str:
    stem = os.fsdecode(os.fsencode(path.name)[:MAX_STEM_BYTES])
    return f".{stem}.{secrets.token_hex(8)}.tmp"


@contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


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
