"""Owners of files and processes, by name: they tell what dead processes left from what living ones use.

An owner is ``PID-STARTTIME``, with the start in clock ticks since boot: a reused process id is another owner.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

SERVER_ID = 65533
"""User and group id, on the host, of the servers of a root harness (`gymcp.mcp_servers.sandbox.users.identity`).

Neither systemd nor Debian assigns it, and containers that map 65,536 ids have it.
"""
OWNER = r"(\d+)-(\d+)"
OWNER_VARIABLE = "GYMCP_OWNER"
"""Environment variable that names the owner of a process."""
_STAGING = re.compile(rf"\..+-(?P<owner>{OWNER})-\w{{8}}")


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process; None if there is no such process, or only its zombie."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = content[content.rindex(b")") + 2 :].split()  # the process name before it may hold blanks and brackets
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def owner() -> str:
    """Owner name of this process."""
    return _owner_of(os.getpid())


@functools.cache
def _owner_of(pid: int) -> str:
    return f"{pid}-{start_time(pid)}"


def is_alive(owner_tag: str) -> bool:
    """False if the process is gone, or if another process has its id now."""
    if not (match := re.fullmatch(OWNER, owner_tag)):
        return False
    return start_time(int(match[1])) == int(match[2])


def environment_with_owner() -> dict[str, str]:
    """Environment of this process for a child, which counts as a leftover once this process is dead."""
    return {**os.environ, OWNER_VARIABLE: owner()}


def pid_namespace() -> str:
    """Name of the pid namespace of this process: process ids of another namespace mean nothing here."""
    return str(Path("/proc/self/ns/pid").readlink())


def lock_folder(folder: Path) -> int:
    """A descriptor that locks the folder: `is_unlocked` is False while it is open, also in other pid namespaces."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def is_unlocked(folder: Path) -> bool:
    """True for a folder of this user that no process has locked."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        handle = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`, to fill and to rename to it; it is removed at the end of the context.

    Its name holds its owner: `owner_of_staging_folder`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-{owner()}-", dir=folder.parent))
    handle = lock_folder(staging)
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)
        os.close(handle)


def owner_of_staging_folder(name: str) -> str | None:
    """Owner of a folder that `staging_folder` has staging; None for any other name."""
    match = _STAGING.fullmatch(name)
    return match["owner"] if match else None
