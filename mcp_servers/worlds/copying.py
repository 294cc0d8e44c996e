"""Copies and removes folders that a server may be writing to: every step is by descriptor, and no link is followed."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import stat
import subprocess
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
            _Copier().copy_folder(source_fd, target_fd, 0)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


class _Copier:
    def __init__(self) -> None:
        self._shares_blocks = True

    def copy_folder(self, source: int, target: int, depth: int) -> None:
        if depth > _MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {_MAX_DEPTH} deep")
        with os.scandir(source) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(entry.name, 0o700, dir_fd=target)
                    self._copy_opened(entry.name, source, target, _FOLDER, _FOLDER, depth)
                elif entry.is_file(follow_symlinks=False):
                    self._copy_opened(entry.name, source, target, _READ, _WRITE, depth)
                else:
                    _copy_special(entry.name, source, target)
        found = os.fstat(source)
        with contextlib.suppress(OSError):  # ENODATA: not opaque; EOPNOTSUPP: no attributes here, so no overlay either
            os.setxattr(target, _OPAQUE, os.getxattr(source, _OPAQUE))
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _copy_opened(self, name: str, source: int, target: int, reading: int, writing: int, depth: int) -> None:
        below = os.open(name, reading, dir_fd=source)
        try:
            copy = os.open(name, writing, 0o600, dir_fd=target)
            try:
                if reading == _FOLDER:
                    self.copy_folder(below, copy, depth + 1)
                else:
                    self._copy_file(below, copy)
            finally:
                os.close(copy)
        finally:
            os.close(below)

    def _copy_file(self, source: int, target: int) -> None:
        found = os.fstat(source)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.ESTALE, "a file was replaced while it was copied")
        if not self._share(source, target):
            done = 0
            while sent := os.sendfile(target, source, done, min(found.st_size - done, _BLOCK)):
                done += sent
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _share(self, source: int, target: int) -> bool:
        if self._shares_blocks:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError:  # not on this file system: one try is enough
                self._shares_blocks = False
        return self._shares_blocks


def _copy_special(name: str, source: int, target: int) -> None:
    """A link, a fifo, a socket, or the device 0:0 that stands for a removed file in an overlay's upper layer."""
    found = os.stat(name, dir_fd=source, follow_symlinks=False)
    kind = stat.S_IFMT(found.st_mode)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        return
    if found.st_rdev != 0 or kind not in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR):
        raise OSError(errno.EPERM, f"{name!r} is a device, or was replaced while it was copied")
    os.mknod(name, kind | 0o600, 0, dir_fd=target)
    if kind != stat.S_IFCHR:
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=target)


def remove_tree(folder: Path) -> None:
    """Removes it with everything below, whatever the modes and however deep; what stays is left to `gymcp clean`."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
        return
    if folder.exists():
        path = str(folder)
        for command in (["chmod", "-R", "u+rwX", path], ["rm", "-rf", "--one-file-system", "--", path]):
            subprocess.run(command, capture_output=True, check=False)
