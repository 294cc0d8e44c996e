"""Gives folders to the user that servers run as on the host, and takes them back.

No link is followed. Device nodes and mounts below a folder are not part of it: they keep their owners.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import fcntl
import logging
import os
import re
import stat
import threading
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from gymcp.mcp_servers.sandbox.users.identity import id_on_the_host

log = logging.getLogger(__name__)
_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID
_OWNER_ATTRIBUTE = "trusted.gymcp.owner"
"""Extended attribute of a lent folder with its original owner, so that another harness can give it back if this one is
killed. No server can write it."""
_LOCK_TIMEOUT_S = 10.0
_AT_SYMLINK_NOFOLLOW, _AT_NO_AUTOMOUNT = 0x100, 0x800
_STATX_ATTR_MOUNT_ROOT = 0x2000
_STATX_BYTES, _ATTRIBUTES, _KNOWN_ATTRIBUTES = 256, slice(8, 16), slice(56, 64)
"""Size of the kernel's `struct statx`, and the places of its attributes and of those that the file system knows."""

_Owner = tuple[int, int]
"""User id and group id."""
_Entry = tuple[str | Path, int | None, os.stat_result]
"""Name, descriptor of the folder that the name is in, and status."""
_statx = getattr(ctypes.CDLL(None), "statx", None)


def needs_new_owner(folder: Path) -> bool:
    """True if the folder does not belong to servers and the harness can change its owner."""
    return os.getuid() == 0 and folder.lstat().st_uid != id_on_the_host()


def give_to_servers(folder: Path) -> None:
    """Give a folder with everything below it to the servers' user; do nothing unless root. Raises OSError."""
    if needs_new_owner(folder):
        change_owner(folder, id_on_the_host())


def change_owner(path: Path, user: int) -> None:
    """Give a file, or a folder with everything below it, to a user and the group with the same id.

    The top comes last: if the top belongs to the user, everything below does too. Raises OSError.
    """
    for entry in _iterate_entries(path):
        _change_owner(entry, user)


def _change_owner(entry: _Entry, user: int) -> None:
    name, handle, status = entry
    if (status.st_uid, status.st_gid) == (user, user):
        return
    os.chown(name, user, user, dir_fd=handle, follow_symlinks=False)
    if status.st_mode & _SET_ID_BITS and not stat.S_ISLNK(status.st_mode):  # bits that chown clears
        os.chmod(name, stat.S_IMODE(status.st_mode), dir_fd=handle)


@dataclass(slots=True)
class _Lending:
    """A file or folder that belongs to servers of this process for a while."""

    path: Path
    handle: int
    """Descriptor with a lock, shared with other harnesses that lend the same folder, as long as servers use it."""
    owner: _Owner
    """Original owner, who gets it back."""
    others: dict[_Owner, _Owner] = field(default_factory=dict)
    """(device, inode) -> original owner, for entries that belonged to another user than the top."""
    users: int = 1
    """Number of contexts that lend it."""


_lendings: dict[tuple[int, int], _Lending] = {}
"""Lendings of this process by (device, inode)."""
_lendings_lock = threading.Lock()


def give_pipes(*pipes: int) -> None:
    """Give pipes to the server's user, so that a server can open its standard streams by name (``/dev/stderr``)."""
    for pipe in pipes:
        os.fchown(pipe, id_on_the_host(), id_on_the_host())


@asynccontextmanager
async def lend(paths: Sequence[Path]) -> AsyncIterator[None]:
    """Give the paths to servers until the last context with them ends, in any harness; then back to their owners."""
    async with AsyncExitStack() as stack:
        for path in paths if os.getuid() == 0 else ():
            lending = asyncio.ensure_future(asyncio.to_thread(_lend_path, path))
            stack.push_async_callback(_finish, lending)
            await asyncio.shield(lending)
        yield


async def _finish(lending: asyncio.Future[_Lending | None]) -> None:
    """Give the path back, even if the task was cancelled while it was still being lent."""
    if not lending.done():
        await asyncio.wait([lending])
    if not lending.cancelled() and lending.exception() is None and (result := lending.result()) is not None:
        await asyncio.shield(asyncio.to_thread(_give_back, result))


def _lend_path(path: Path) -> _Lending | None:
    """Give a path to servers; None if it is theirs already, a device node, or does not exist. Raises OSError."""
    path = path.resolve()  # as bwrap will mount it
    if not path.exists() or _is_device(path.lstat()):
        return None
    with _lendings_lock:
        status = path.lstat()
        if (lending := _lendings.get((status.st_dev, status.st_ino))) is not None:
            lending.users += 1
            return lending
        handle = _lock_shared(path, status.st_mode)
        if (owner := _original_owner(path)) is None:
            _close(handle)
            return None
        lending = _Lending(path, handle, owner)
        try:
            with contextlib.suppress(OSError):  # no extended attributes: after SIGKILL the folder stays the servers'
                os.setxattr(path, _OWNER_ATTRIBUTE, b"%d:%d:%d" % (status.st_ino, *owner))
            user = id_on_the_host()
            for entry in _iterate_entries(path):
                _, _, found = entry
                if (found.st_uid, found.st_gid) != owner and found.st_uid != user:
                    lending.others[found.st_dev, found.st_ino] = (found.st_uid, found.st_gid)
                _change_owner(entry, user)
        except BaseException:
            _take_back(lending)
            raise
        _lendings[status.st_dev, status.st_ino] = lending
        return lending


def _give_back(lending: _Lending) -> None:
    with _lendings_lock:
        lending.users -= 1
        if lending.users == 0:
            for key in [key for key, each in _lendings.items() if each is lending]:
                del _lendings[key]
            _take_back(lending)


def _take_back(lending: _Lending) -> None:
    """Restore the original owners, except of folders that a server has nested too deep to be walked.

    Files lose their set-id bits: a server may have written to them, and they now belong to another user.
    """
    try:
        if lending.handle >= 0:
            fcntl.flock(lending.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name, folder, status in _iterate_entries(lending.path):
            owner = lending.others.get((status.st_dev, status.st_ino), lending.owner)
            if (status.st_uid, status.st_gid) != owner:
                os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)
        with contextlib.suppress(OSError):
            os.removexattr(lending.path, _OWNER_ATTRIBUTE)
    except BlockingIOError:
        pass  # another harness has servers there, and will give the folder back
    except (OSError, RecursionError) as error:
        log.warning("%s: not all of it could be taken back from servers: %s", lending.path, error)
    finally:
        _close(lending.handle)


def _iterate_entries(path: Path) -> Iterator[_Entry]:
    """Everything below the path, and then the path itself, without device nodes and without what is mounted there."""
    top = path.lstat()
    if stat.S_ISDIR(top.st_mode):
        for _, folders, files, handle in os.fwalk(path):
            own = [entry for name in (*folders, *files) if (entry := _own_entry(name, handle, top)) is not None]
            yield from own
            names = {name for name, _, _ in own}
            folders[:] = [name for name in folders if name in names]  # those that are walked
    if not _is_device(top):
        yield path, None, top


def _own_entry(name: str, folder: int, top: os.stat_result) -> _Entry | None:
    """The entry of a folder; None for a device node and for a mount, such as the host's /dev or a file of the host."""
    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return None if _is_device(status) or _is_mount(name, folder, status, top) else (name, folder, status)


def _is_device(status: os.stat_result) -> bool:
    return stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode)


def _is_mount(name: str, folder: int, status: os.stat_result, top: os.stat_result) -> bool:
    """True if something is mounted at the entry, from another file system or from the same one.

    On a kernel that cannot say so (before 5.8) the device tells, and a mount from the same file system passes.
    """
    found = ctypes.create_string_buffer(_STATX_BYTES)
    flags = _AT_SYMLINK_NOFOLLOW | _AT_NO_AUTOMOUNT
    if _statx is not None and _statx(folder, os.fsencode(name), flags, 0, found) == 0:
        attributes, known = (int.from_bytes(found.raw[place], "little") for place in (_ATTRIBUTES, _KNOWN_ATTRIBUTES))
        if known & _STATX_ATTR_MOUNT_ROOT:
            return bool(attributes & _STATX_ATTR_MOUNT_ROOT)
    return stat.S_ISDIR(status.st_mode) and status.st_dev != top.st_dev  # an overlay's files may have other devices


def _original_owner(path: Path) -> _Owner | None:
    """Owner of the path, or its owner before a killed harness had lent it; None if it belongs to servers."""
    if needs_new_owner(path):
        status = path.lstat()
        return status.st_uid, status.st_gid
    with contextlib.suppress(OSError):
        recorded = re.fullmatch(rb"(\d+):(\d{1,10}):(\d{1,10})", os.getxattr(path, _OWNER_ATTRIBUTE))
        if recorded is not None and int(recorded[1]) == path.lstat().st_ino:  # not an attribute copied with a folder
            return int(recorded[2]), int(recorded[3])
    return None


def _lock_shared(path: Path, mode: int) -> int:
    """Descriptor with a shared lock, once no other harness is taking the path back; -1 if it is no file or folder."""
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
        return -1
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() < deadline:
                time.sleep(0.01)
                continue
        return handle


def _close(handle: int) -> None:
    if handle >= 0:
        os.close(handle)
