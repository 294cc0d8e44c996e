"""Gives folders to the user that servers run as on the host, and takes them back; no link is followed."""

from __future__ import annotations

import asyncio
import contextlib
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

_Owner = tuple[int, int]
"""User id and group id."""


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
    if stat.S_ISDIR(path.lstat().st_mode):
        for _, folders, files, handle in os.fwalk(path, topdown=False):
            for name in (*folders, *files):
                _change_owner(name, user, handle)
    _change_owner(path, user, None)


def _change_owner(name: str | Path, user: int, handle: int | None) -> None:
    status = os.stat(name, dir_fd=handle, follow_symlinks=False)
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
    """Give a path to servers; None if it belongs to them already or does not exist. Raises OSError."""
    path = path.resolve()  # as bwrap will mount it
    if not path.exists():
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
            for name, folder in _iterate_entries(path):
                entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if (entry.st_uid, entry.st_gid) != owner and entry.st_uid != user:
                    lending.others[entry.st_dev, entry.st_ino] = (entry.st_uid, entry.st_gid)
                _change_owner(name, user, folder)
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
        for name, folder in _iterate_entries(lending.path):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
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


def _iterate_entries(path: Path) -> Iterator[tuple[str | Path, int | None]]:
    """(name, descriptor of its folder) for everything below the path, and then for the path itself."""
    if stat.S_ISDIR(path.lstat().st_mode):
        for _, folders, files, handle in os.fwalk(path, topdown=False):
            for name in (*folders, *files):
                yield name, handle
    yield path, None


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
