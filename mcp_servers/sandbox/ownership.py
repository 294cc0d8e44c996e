"""Gives folders to the user that servers are on the host, and takes them back; no link is followed."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from gymcp.mcp_servers.sandbox.identity import id_on_the_host

log = logging.getLogger(__name__)
_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID


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


def _take_back(path: Path, user: int) -> None:
    """What a server has nested too deep to be walked stays the servers'."""
    try:
        give(path, user)
    except (OSError, RecursionError) as error:
        log.warning("%s: not all of it could be taken back from servers: %s", path, error)


def give_pipes(*pipes: int) -> None:
    """Lets a server open its standard streams by their names (``/dev/stderr``), which its pipes' owner may."""
    for pipe in pipes:
        os.fchown(pipe, id_on_the_host(), id_on_the_host())


@asynccontextmanager
async def lent(paths: Sequence[Path]) -> AsyncIterator[None]:
    """They belong to servers while the context lasts, and then to whom they did before."""
    async with AsyncExitStack() as stack:
        for path in paths:
            if path.exists() and is_others(path):
                stack.push_async_callback(asyncio.to_thread, _take_back, path, path.lstat().st_uid)
                await asyncio.to_thread(give_to_servers, path)
        yield
