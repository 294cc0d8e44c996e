"""Gives folders to the user that servers are on the host, and takes them back; no link is followed."""

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
"""Of a lent folder: whose it was, for the next one who lends it if this harness is killed. No server can write it."""
_LOCK_TIMEOUT_S = 10.0

_Owner = tuple[int, int]
"""User and group."""


def is_others(folder: Path) -> bool:
    """True if servers do not own it, and the harness could change that."""
    return os.getuid() == 0 and folder.lstat().st_uid != id_on_the_host()


def give_to_servers(folder: Path) -> None:
    """Makes all of it the servers' own; nothing to do unless the harness is root. Raises OSError."""
    if is_others(folder):
        give(folder, id_on_the_host())


def give(path: Path, user: int) -> None:
    """Makes a file, or a folder with everything below it, that user's and its group's; the top comes last.

    So what belongs to the user at the top does so below. Raises OSError.
    """
    if stat.S_ISDIR(path.lstat().st_mode):
        for _, folders, files, handle in os.fwalk(path, topdown=False):
            for name in (*folders, *files):
                _give(name, user, handle)
    _give(path, user, None)


def _give(name: str | Path, user: int, handle: int | None) -> None:
    found = os.stat(name, dir_fd=handle, follow_symlinks=False)
    if (found.st_uid, found.st_gid) == (user, user):
        return
    os.chown(name, user, user, dir_fd=handle, follow_symlinks=False)
    if found.st_mode & _SET_ID_BITS and not stat.S_ISLNK(found.st_mode):  # which changing the owner clears
        os.chmod(name, stat.S_IMODE(found.st_mode), dir_fd=handle)


@dataclass(slots=True)
class _Lending:
    """A file or folder that servers of this process own for a while."""

    path: Path
    handle: int
    """Locked, shared by all harnesses that lend it, as long as servers use it."""
    owner: _Owner
    """To whom it goes back."""
    others: dict[_Owner, _Owner] = field(default_factory=dict)
    """(device, inode) -> owner, of what in it belonged to another."""
    users: int = 1


_lendings: dict[tuple[int, int], _Lending] = {}
"""By device and inode."""
_changing = threading.Lock()


def give_pipes(*pipes: int) -> None:
    """Lets a server open its standard streams by their names (``/dev/stderr``), which its pipes' owner may."""
    for pipe in pipes:
        os.fchown(pipe, id_on_the_host(), id_on_the_host())


@asynccontextmanager
async def lent(paths: Sequence[Path]) -> AsyncIterator[None]:
    """They belong to servers while any context with them lasts, in any harness, and then to whom they did before."""
    async with AsyncExitStack() as stack:
        for path in paths if os.getuid() == 0 else ():
            lending = asyncio.ensure_future(asyncio.to_thread(_lend, path))
            stack.push_async_callback(_finish, lending)
            await asyncio.shield(lending)
        yield


async def _finish(lending: asyncio.Future[_Lending | None]) -> None:
    """Takes back even what was still being lent when the task was cancelled."""
    if not lending.done():
        await asyncio.wait([lending])
    if not lending.cancelled() and lending.exception() is None and (lent_one := lending.result()) is not None:
        await asyncio.shield(asyncio.to_thread(_give_back, lent_one))


def _lend(path: Path) -> _Lending | None:
    """None for what is servers' own anyway, and for what is not there. Raises OSError."""
    path = path.resolve()  # as bwrap will mount it
    if not path.exists():
        return None
    with _changing:
        found = path.lstat()
        if (lending := _lendings.get((found.st_dev, found.st_ino))) is not None:
            lending.users += 1
            return lending
        handle = _locked(path, found.st_mode)
        if (owner := _owner_before(path)) is None:
            _close(handle)
            return None
        lending = _Lending(path, handle, owner)
        try:
            with contextlib.suppress(OSError):  # a file system without attributes: after a kill it stays the servers'
                os.setxattr(path, _OWNER_ATTRIBUTE, b"%d:%d:%d" % (found.st_ino, *owner))
            user = id_on_the_host()
            for name, folder in _entries(path):
                entry = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if (entry.st_uid, entry.st_gid) != owner and entry.st_uid != user:
                    lending.others[entry.st_dev, entry.st_ino] = (entry.st_uid, entry.st_gid)
                _give(name, user, folder)
        except BaseException:
            _take_back(lending)
            raise
        _lendings[found.st_dev, found.st_ino] = lending
        return lending


def _give_back(lending: _Lending) -> None:
    with _changing:
        lending.users -= 1
        if lending.users == 0:
            for key in [key for key, each in _lendings.items() if each is lending]:
                del _lendings[key]
            _take_back(lending)


def _take_back(lending: _Lending) -> None:
    """What a server has nested too deep to be walked stays the servers'.

    Files lose their set-id bits: a server may have written to them, and they would now be another's.
    """
    try:
        if lending.handle >= 0:
            fcntl.flock(lending.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for name, folder in _entries(lending.path):
            found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            owner = lending.others.get((found.st_dev, found.st_ino), lending.owner)
            if (found.st_uid, found.st_gid) != owner:
                os.chown(name, *owner, dir_fd=folder, follow_symlinks=False)
        with contextlib.suppress(OSError):
            os.removexattr(lending.path, _OWNER_ATTRIBUTE)
    except BlockingIOError:
        pass  # another harness has servers there, and will give it back
    except (OSError, RecursionError) as error:
        log.warning("%s: not all of it could be taken back from servers: %s", lending.path, error)
    finally:
        _close(lending.handle)


def _entries(path: Path) -> Iterator[tuple[str | Path, int | None]]:
    """(name, descriptor of its folder) of all below the path, and then of the path itself."""
    if stat.S_ISDIR(path.lstat().st_mode):
        for _, folders, files, handle in os.fwalk(path, topdown=False):
            for name in (*folders, *files):
                yield name, handle
    yield path, None


def _owner_before(path: Path) -> _Owner | None:
    """Whose it is, or was before a harness was killed that had lent it; None for what is servers' own."""
    if is_others(path):
        found = path.lstat()
        return found.st_uid, found.st_gid
    with contextlib.suppress(OSError):
        noted = re.fullmatch(rb"(\d+):(\d{1,10}):(\d{1,10})", os.getxattr(path, _OWNER_ATTRIBUTE))
        if noted is not None and int(noted[1]) == path.lstat().st_ino:  # of itself, not of what it is a copy of
            return int(noted[2]), int(noted[3])
    return None


def _locked(path: Path, mode: int) -> int:
    """A descriptor with a shared lock, once no other harness is taking it back; -1 for what is no file or folder."""
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
