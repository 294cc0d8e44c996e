"""Who a thing belongs to: processes by name, so that what dead ones left can be told from what living ones use.

An owner is ``PID-STARTTIME``, the start in clock ticks since boot: a reused process id is another owner.
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
"""Environment variable that marks a process as its owner's."""
_UNFINISHED = re.compile(rf"\..+-(?P<owner>{OWNER})-\w{{8}}")


def start_time(pid: int) -> int | None:
    """Clock ticks from boot to the start of the process; None where there is none, or only its zombie."""
    try:
        content = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = content[content.rindex(b")") + 2 :].split()  # the name before it may hold blanks and brackets
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def owner() -> str:
    """This process."""
    return _owner_of(os.getpid())


@functools.cache
def _owner_of(pid: int) -> str:
    return f"{pid}-{start_time(pid)}"


def is_alive(owner_tag: str) -> bool:
    """False where the process is gone, or where its id is another's now."""
    if not (match := re.fullmatch(OWNER, owner_tag)):
        return False
    return start_time(int(match[1])) == int(match[2])


def owned_environment() -> dict[str, str]:
    """This process's environment, for a child that is a leftover once this process is dead."""
    return {**os.environ, OWNER_VARIABLE: owner()}


def pid_namespace() -> str:
    """Which one this process is in: process ids of another mean nothing here."""
    return str(Path("/proc/self/ns/pid").readlink())


def held(folder: Path) -> int:
    """A descriptor; as long as it is open, `is_free` is False. Says so to processes in other pid namespaces, too."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(handle, fcntl.LOCK_SH)
    return handle


def is_free(folder: Path) -> bool:
    """True for a folder of this user's that nobody holds."""
    try:
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
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
def unfinished(folder: Path) -> Iterator[Path]:
    """An empty folder beside `folder`, to be filled and renamed to it; at the end of the context it is gone.

    It bears the mark of its owner: `owner_of_unfinished`.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix=f".{folder.name}-{owner()}-", dir=folder.parent))
    handle = held(made)
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)
        os.close(handle)


def owner_of_unfinished(name: str) -> str | None:
    """Of a folder that `unfinished` has made; None for any other name."""
    match = _UNFINISHED.fullmatch(name)
    return match["owner"] if match else None
