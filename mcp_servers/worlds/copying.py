"""Copies and removes folders that a server may be writing to: every step is by descriptor, and no link is followed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

_FICLONE = 0x40049409
_BLOCK = 1 << 26
_MAX_DEPTH = 200
_OPAQUE = "user.overlay.opaque"
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def copy_tree(source: Path, target: Path) -> None:
    """Makes `target` a copy of the folder: contents, types, modes, link targets, times, marks of an overlay's layer.

    Hard links would be cheaper, but a server owns its files as the harness owns the seed's, so a write or a chmod
    through a link would reach the seed. Where the file system can share blocks, it does. Raises OSError.
    """
    target.mkdir(mode=0o700)
    source_fd = os.open(source, _FOLDER)
    try:
        target_fd = os.open(target, _FOLDER)
        try:
            _copy_folder(source_fd, target_fd, 0)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def _copy_folder(source: int, target: int, depth: int) -> None:
    if depth > _MAX_DEPTH:
        raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {_MAX_DEPTH} deep")
    for name in os.listdir(source):
        found = os.stat(name, dir_fd=source, follow_symlinks=False)
        kind = stat.S_IFMT(found.st_mode)
        if kind == stat.S_IFDIR:
            os.mkdir(name, 0o700, dir_fd=target)
            with _opened(name, _FOLDER, source) as below, _opened(name, _FOLDER, target) as copy:
                _copy_folder(below, copy, depth + 1)
        elif kind == stat.S_IFREG:
            with _opened(name, _READ, source) as below, _opened(name, _WRITE, target, 0o600) as copy:
                _copy_file(below, copy)
        elif kind == stat.S_IFLNK:
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif found.st_rdev != 0:
            raise OSError(errno.EPERM, f"{name!r} is a device")
        else:  # a fifo, a socket, or the 0:0 device that stands for a removed file in an overlay's upper layer
            os.mknod(name, kind | 0o600, 0, dir_fd=target)
            if kind != stat.S_IFCHR:
                os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=target)
    found = os.fstat(source)
    with contextlib.suppress(OSError):  # ENODATA: not opaque; EOPNOTSUPP: no such attributes here, so no overlay either
        os.setxattr(target, _OPAQUE, os.getxattr(source, _OPAQUE))
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


def _copy_file(source: int, target: int) -> None:
    found = os.fstat(source)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(errno.ESTALE, "a file was replaced while it was copied")
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        done = 0
        while sent := os.sendfile(target, source, done, min(found.st_size - done, _BLOCK)):
            done += sent
    os.fchmod(target, stat.S_IMODE(found.st_mode))
    os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))


@contextlib.contextmanager
def _opened(name: str, flags: int, folder: int, mode: int = 0) -> Iterator[int]:
    fd = os.open(name, flags, mode, dir_fd=folder)
    try:
        yield fd
    finally:
        os.close(fd)


def remove_tree(folder: Path) -> None:
    """Removes it with everything below, whatever the modes and however deep; what stays is left to `gymcp clean`."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
        return
    if folder.exists():
        path = str(folder)
        for command in (["chmod", "-R", "u+rwX", path], ["rm", "-rf", "--one-file-system", "--", path]):
            subprocess.run(command, capture_output=True, check=False)
