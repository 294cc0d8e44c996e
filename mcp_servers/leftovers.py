"""What gymcp leaves on a machine is tagged with its owner; what dead owners left can be found and removed.

An owner is ``PID-STARTTIME``, the start in clock ticks since boot: a reused process id is another owner. Tagged are:

* the folder ``TMP/gymcp-UID/OWNER``: everything temporary, removed at exit;
* cgroups named ``gymcp-OWNER-N``: removed with their server;
* host processes with ``GYMCP_OWNER=OWNER`` in their environment: bwrap itself, and the servers of the ``none`` sandbox.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import functools
import os
import re
import shutil
import signal
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gymcp.errors import SandboxUnavailable

OWNER_VARIABLE = "GYMCP_OWNER"
_OWNER = r"(\d+)-(\d+)"
_REMOVE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    kind: Literal["folder", "cgroup", "process"]
    name: str
    """A path, or a process id."""
    owner: str


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
    if not (match := re.fullmatch(_OWNER, owner_tag)):
        return False
    return start_time(int(match[1])) == int(match[2])


def runtime_folder() -> Path:
    """Where the scratch folders of this user's harnesses are; it may not exist."""
    return Path(tempfile.gettempdir()) / f"gymcp-{os.getuid()}"


def scratch_folder() -> Path:
    """This process's private folder, made on first use and removed at exit.

    Raises SandboxUnavailable where someone else has made the folder it should be in.
    """
    return _scratch_of(os.getpid(), runtime_folder())


@functools.cache
def _scratch_of(pid: int, root: Path) -> Path:
    root.mkdir(mode=0o700, exist_ok=True)
    _check_ours(root)
    folder = root / _owner_of(pid)
    folder.mkdir(mode=0o700, exist_ok=True)
    # Held as long as this process lives: says so to harnesses in other pid namespaces, which cannot see it.
    fcntl.flock(os.open(folder, os.O_RDONLY | os.O_CLOEXEC), fcntl.LOCK_SH)
    atexit.register(_remove_own_scratch, pid, folder)
    return folder


def _check_ours(root: Path) -> None:
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise SandboxUnavailable(
            f"{root}: not a private folder of user {os.getuid()}: remove it, or set TMPDIR elsewhere"
        )


def _remove_own_scratch(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # a fork inherits the exit handlers
        shutil.rmtree(folder, ignore_errors=True)


def find_leftovers() -> list[Leftover]:
    """What dead owners of this user left: processes, then cgroups, then folders."""
    return [*_processes(), *_cgroups(), *_folders()]


def remove_leftovers(leftovers: list[Leftover]) -> None:
    """Kills and deletes them; what is gone already, or came to life, is passed over."""
    for leftover in leftovers:
        if is_alive(leftover.owner):
            continue
        if leftover.kind == "process":
            _kill_process(int(leftover.name), leftover.owner)
        elif leftover.kind == "cgroup":
            _remove_cgroup(Path(leftover.name))
        elif _is_dead_folder(Path(leftover.name)):
            shutil.rmtree(leftover.name, ignore_errors=True)


def _processes() -> Iterator[Leftover]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            tag = _owner_in_environment(int(entry.name))
            if tag is not None and not is_alive(tag):
                yield Leftover(kind="process", name=entry.name, owner=tag)


def _owner_in_environment(pid: int) -> str | None:
    try:
        if Path(f"/proc/{pid}").stat().st_uid != os.getuid():
            return None
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    match = re.search(rf"(?:^|\0){OWNER_VARIABLE}=({_OWNER})(?:\0|$)".encode(), content)
    return match[1].decode() if match else None


def _kill_process(pid: int, tag: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _owner_in_environment(pid) == tag:  # asked again: the id may have been reused meanwhile
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _cgroups() -> Iterator[Leftover]:
    for mountpoint in cgroup_mountpoints():
        for folder, children, _ in os.walk(mountpoint):
            for child in children:
                match = re.fullmatch(rf"gymcp-({_OWNER})-\w+", child)
                path = Path(folder, child)
                if match and not is_alive(match[1]) and path.lstat().st_uid == os.getuid():
                    yield Leftover(kind="cgroup", name=str(path), owner=match[1])


def cgroup_mountpoints() -> list[Path]:
    """Every mounted hierarchy of either version."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(fields[4]) for fields in lines if fields[fields.index("-", 6) + 1] in ("cgroup", "cgroup2")]


def _remove_cgroup(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while folder.is_dir() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # EBUSY until the last one is reaped
            for pid in (folder / "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            folder.rmdir()
        time.sleep(0.001)


def _folders() -> Iterator[Leftover]:
    root = runtime_folder()
    if not root.is_dir() or root.is_symlink() or root.stat().st_uid != os.getuid():
        return
    for path in sorted(root.iterdir()):
        if _is_dead_folder(path):
            yield Leftover(kind="folder", name=str(path), owner=path.name)


def _is_dead_folder(path: Path) -> bool:
    try:
        found = path.lstat()
        if not re.fullmatch(_OWNER, path.name) or not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return False
        if is_alive(path.name):
            return False
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True
