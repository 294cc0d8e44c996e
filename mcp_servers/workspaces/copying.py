"""Copies folders that a server may be writing to: every step uses file descriptors, and no link is followed."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from pathlib import Path

_FICLONE = 0x40049409
_BLOCK_BYTES = 1 << 26
_MAX_DEPTH = 200
_OPAQUE = "user.overlay.opaque"
_OVERLAY_PREFIX = "user.overlay."
_ACLS = ("system.posix_acl_access", "system.posix_acl_default")
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def copy_tree(source: Path, target: Path) -> None:
    """Copy the folder to `target` with contents, types, modes, times, link targets, hard links and attributes.

    The extended attributes copied are user attributes, access control lists, and the opaque marks of an overlay layer.
    Names of one file are names of one file in the copy, too. The copy has no hard links to the source, although they
    would be cheaper: a server may own both, and a write or a chmod through a link would reach the seed. File contents
    share blocks if the file system can do that. Raises OSError.
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
        """(device, inode) of a file with several names -> path of its copy below the root."""

    def copy_folder(self, source: int, target: int, path: tuple[str, ...]) -> None:
        if len(path) > _MAX_DEPTH:
            raise OSError(errno.ENAMETOOLONG, f"folders are nested more than {_MAX_DEPTH} deep")
        with os.scandir(source) as entries:
            for entry in list(entries):
                if entry.is_dir(follow_symlinks=False):
                    os.mkdir(entry.name, 0o700, dir_fd=target)
                    self._copy_by_descriptor((*path, entry.name), source, target, _FOLDER, _FOLDER)
                elif entry.is_file(follow_symlinks=False):
                    if not self._link((*path, entry.name), source, target):
                        self._copy_by_descriptor((*path, entry.name), source, target, _READ, _WRITE)
                else:
                    _copy_special(entry.name, source, target)
        status = os.fstat(source)
        _copy_attributes(source, target)
        os.fchmod(target, stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _link(self, path: tuple[str, ...], source: int, target: int) -> bool:
        """Make a hard link if the file was copied under another name already; False if it has to be copied."""
        status = os.stat(path[-1], dir_fd=source, follow_symlinks=False)
        if status.st_nlink == 1:
            return False
        first = self._copies.setdefault((status.st_dev, status.st_ino), path)
        if first == path:
            return False
        folder = os.dup(self._root)
        try:
            for name in first[:-1]:  # by descriptor: the whole path may be longer than a system call takes
                below = os.open(name, _FOLDER, dir_fd=folder)
                os.close(folder)
                folder = below
            os.link(first[-1], path[-1], src_dir_fd=folder, dst_dir_fd=target, follow_symlinks=False)
        finally:
            os.close(folder)
        return True

    def _copy_by_descriptor(self, path: tuple[str, ...], source: int, target: int, reading: int, writing: int) -> None:
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
        status = os.fstat(source)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.ESTALE, "a file was replaced while it was copied")
        if not self._share(source, target):
            offset = 0
            while sent := os.sendfile(target, source, offset, min(status.st_size - offset, _BLOCK_BYTES)):
                offset += sent
        _copy_attributes(source, target)
        os.fchmod(target, stat.S_IMODE(status.st_mode))
        os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))

    def _share(self, source: int, target: int) -> bool:
        if self._shares_blocks:
            try:
                fcntl.ioctl(target, _FICLONE, source)
            except OSError:  # this file system cannot share blocks: do not try again
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
        users = name.startswith("user.") and not name.startswith(_OVERLAY_PREFIX)
        if users or name in _ACLS or name == _OPAQUE:
            _copy_attribute(name, source, target)


def _copy_attribute(name: str, source: int, target: int) -> None:
    try:
        os.setxattr(target, name, os.getxattr(source, name))
    except OSError as error:
        if error.errno not in (errno.ENODATA, errno.ENOTSUP):  # removed meanwhile; unknown to the target's file system
            raise


def _copy_special(name: str, source: int, target: int) -> None:
    """Copy a link, a fifo, a socket, or the device 0:0 that stands for a removed file in an overlay's upper layer."""
    status = os.stat(name, dir_fd=source, follow_symlinks=False)
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFLNK:
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        return
    if status.st_rdev != 0 or kind not in (stat.S_IFIFO, stat.S_IFSOCK, stat.S_IFCHR):
        raise OSError(errno.EPERM, f"{name!r} is a device, or was replaced while it was copied")
    os.mknod(name, kind | 0o600, 0, dir_fd=target)
    if kind != stat.S_IFCHR:
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=target)
