"""Copies folders that a server may be writing to: every step is by descriptor, and no link is followed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

_FICLONE = 0x40049409
_BLOCK = 1 << 26
_MAX_DEPTH = 200
_OPAQUE = "user.overlay.opaque"
_OVERLAYS_OWN = "user.overlay."
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def copy_tree(source: Path, target: Path) -> None:
    """Makes `target` a copy of the folder, with contents, types, modes, times, link targets, hard links, attributes.

    Of extended attributes a user's, access lists, and an overlay layer's marks are copied. Names that were one file are
    one file again, in the copy alone: hard links to the source would be cheaper, but a server owns its files as the
    harness owns the seed's, so a write or a chmod through a link would reach the seed. If the file system can share
    blocks, it does. Raises OSError.
    """
    target.mkdir(mode=0o700)
    source_fd = os.open(source, _FOLDER)
    try:
        target_fd = os.open(target, _FOLDER)
        try:
            _Copier(target_fd).copy_folder(source_fd, target_fd, ())
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


class _Copier:
    def __init__(self, root: int) -> None:
        self._shares_blocks = True
        self._root = root
        self._copies: dict[tuple[int, int], tuple[str, ...]] = {}
        """By device and inode of a file with several names: where below the root its copy is."""

    def copy_folder(self, source: int, target: int, path: tuple[str, ...]) -> None:
        if len(path) > _MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {_MAX_DEPTH} deep")
        with os.scandir(source) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(entry.name, 0o700, dir_fd=target)
                    self._copy_opened((*path, entry.name), source, target, _FOLDER, _FOLDER)
                elif entry.is_file(follow_symlinks=False):
                    if not self._link((*path, entry.name), source, target):
                        self._copy_opened((*path, entry.name), source, target, _READ, _WRITE)
                else:
                    _copy_special(entry.name, source, target)
        found = os.fstat(source)
        _copy_attributes(source, target)
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _link(self, path: tuple[str, ...], source: int, target: int) -> bool:
        """True for another name of a file that was copied under its first, once it is that of the copy, too."""
        found = os.stat(path[-1], dir_fd=source, follow_symlinks=False)
        if found.st_nlink == 1:
            return False
        first = self._copies.setdefault((found.st_dev, found.st_ino), path)
        if first == path:
            return False
        folder = os.dup(self._root)
        try:
            for name in first[:-1]:  # by descriptor: the whole path may be longer than any call takes
                below = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
            os.link(first[-1], path[-1], src_dir_fd=folder, dst_dir_fd=target, follow_symlinks=False)
        finally:
            os.close(folder)
        return True

    def _copy_opened(self, path: tuple[str, ...], source: int, target: int, reading: int, writing: int) -> None:
        below = os.open(path[-1], reading, dir_fd=source)
        try:
            copy = os.open(path[-1], writing, 0o600, dir_fd=target)
            try:
                if reading == _FOLDER:
                    self.copy_folder(below, copy, path)
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
        _copy_attributes(source, target)
        os.fchmod(target, stat.S_IMODE(found.st_mode))
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _share(self, source: int, target: int) -> bool:
        if self._shares_blocks:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError:  # not on this file system: one try is enough
                self._shares_blocks = False
        return self._shares_blocks


def _copy_attributes(source: int, target: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno == errno.ENOTSUP:  # no attributes here, so no overlay either
            return
        raise
    for name in names:
        users = name.startswith("user.") and not name.startswith(_OVERLAYS_OWN)
        if users or name in _ACLS or name == _OPAQUE:
            _copy_attribute(name, source, target)


def _copy_attribute(name: str, source: int, target: int) -> None:
    try:
        os.setxattr(target, name, os.getxattr(source, name))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):  # gone by now; not on the target's file system
            raise


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
