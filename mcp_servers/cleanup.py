"""Find and remove the leftovers of dead processes of gymcp: everything it leaves on a machine is tagged with its owner.

An owner is a process (`gymcp.process_owner`). Tagged are:

* the folder ``TMP/gymcp-UID/OWNER``: everything temporary, removed at exit;
* cgroups named ``gymcp-OWNER-N``: removed with their server;
* containers labelled ``gymcp.owner=OWNER``: removed with their server, or by the reaper of a killed harness;
* host processes with ``GYMCP_OWNER=OWNER`` in their environment: bwrap itself, installers, and the servers of the
  ``none`` sandbox;
* folders ``.NAME-OWNER-XXXXXXXX`` in gymcp's cache: being filled there, then renamed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.sandbox.docker.engine_api import (
    OWNER_LABEL,
    PIDS_LABEL,
    USER_LABEL,
    EngineError,
    find_containers,
    remove,
    socket_path,
    was_used,
)
from gymcp.paths import gymcp_home
from gymcp.process_owner import (
    OWNER,
    OWNER_VARIABLE,
    SERVER_ID,
    is_alive,
    is_unlocked,
    owner_of_staging_folder,
    pid_namespace,
)
from gymcp.scratch import remove_tree, runtime_folder

_REMOVE_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftover:
    kind: Literal["folder", "unfinished", "cgroup", "process", "container"]
    """unfinished: a download or an install in gymcp's cache that was not completed."""
    name: str
    """A path, a process id, or a container's id."""
    owner: str


def find_leftovers(*, ask_engine: bool = False) -> list[Leftover]:
    """Leftovers of this user's dead owners: processes first, folders last.

    `ask_engine`: look for containers even if none was ever started with this cache.
    """
    return [*_processes(), *_containers(ask_engine), *_cgroups(), *_folders(), *_staging_folders()]


def remove_leftovers(leftovers: list[Leftover]) -> None:
    """Kill and delete them. A leftover that is gone already, or whose owner is alive, is skipped."""
    for leftover in leftovers:
        if is_alive(leftover.owner):
            continue
        if leftover.kind == "process":
            _kill_process(int(leftover.name), leftover.owner)
        elif leftover.kind == "container":
            with contextlib.suppress(EngineError):
                remove(leftover.name)
        elif leftover.kind == "cgroup":
            _remove_cgroup(Path(leftover.name))
        elif is_unlocked(Path(leftover.name)):
            _unmount_below(Path(leftover.name))
            remove_tree(Path(leftover.name))


def _processes() -> Iterator[Leftover]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            tag = _owner_in_environment(int(entry.name))
            if tag is not None and not is_alive(tag):
                yield Leftover(kind="process", name=entry.name, owner=tag)


def _owner_in_environment(pid: int) -> str | None:
    try:
        if Path(f"/proc/{pid}").stat().st_uid not in _our_users():
            return None
        if str(Path(f"/proc/{pid}/ns/pid").readlink()) != pid_namespace():
            return None  # its owner is a process of another namespace, and may live there
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    match = re.search(rf"(?:^|\0){OWNER_VARIABLE}=({OWNER})(?:\0|$)".encode(), content)
    return match[1].decode() if match else None


def _our_users() -> tuple[int, ...]:
    return (0, SERVER_ID) if os.getuid() == 0 else (os.getuid(),)


def _kill_process(pid: int, tag: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _owner_in_environment(pid) == tag:  # read again: the id may have been reused meanwhile
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _containers(ask_engine: bool) -> Iterator[Leftover]:
    """Containers of dead owners; none if no engine answers."""
    with contextlib.suppress(EngineError, SandboxUnavailable):
        if not (ask_engine or was_used()) or not socket_path().exists():
            return
        for container in find_containers(OWNER_LABEL, timeout_s=_REMOVE_TIMEOUT_S):
            labels = container["Labels"]
            ours = (labels.get(USER_LABEL), labels.get(PIDS_LABEL)) == (str(os.getuid()), pid_namespace())
            if ours and not is_alive(labels[OWNER_LABEL]):
                yield Leftover(kind="container", name=container["Id"], owner=labels[OWNER_LABEL])


def _cgroups() -> Iterator[Leftover]:
    for mountpoint in cgroup_mountpoints():
        for folder, children, _ in os.walk(mountpoint):
            for child in children:
                match = re.fullmatch(rf"gymcp-({OWNER})-\w+", child)
                path = Path(folder, child)
                if match and not is_alive(match[1]) and _is_ours(path):
                    yield Leftover(kind="cgroup", name=str(path), owner=match[1])


def _is_ours(path: Path) -> bool:
    """True if it belongs to this user; False if it is gone: another harness may be removing the same leftovers."""
    try:
        return path.lstat().st_uid == os.getuid()
    except FileNotFoundError:
        return False


def cgroup_mountpoints() -> list[Path]:
    """Mount points of every cgroup hierarchy, of either version."""
    lines = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    return [Path(fields[4]) for fields in lines if fields[fields.index("-", 6) + 1] in ("cgroup", "cgroup2")]


def _remove_cgroup(folder: Path) -> None:
    deadline = time.monotonic() + _REMOVE_TIMEOUT_S
    while folder.is_dir() and time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # EBUSY until the last one is reaped
            for pid in (folder / "cgroup.procs").read_text().split():
                if pid == "0":  # a process of another pid namespace, in which its owner may live
                    return
                os.kill(int(pid), signal.SIGKILL)
            folder.rmdir()
        time.sleep(0.001)


def _folders() -> Iterator[Leftover]:
    root = runtime_folder()
    if not root.is_dir() or root.is_symlink() or root.stat().st_uid != os.getuid():
        return
    for path in sorted(root.iterdir()):
        if re.fullmatch(OWNER, path.name) and not is_alive(path.name) and is_unlocked(path):
            yield Leftover(kind="folder", name=str(path), owner=path.name)


def _staging_folders() -> Iterator[Leftover]:
    """Unfinished folders in the upper two levels of the cache. None are made deeper in it."""
    home = gymcp_home()
    for pattern in (".*", "*/.*"):
        for path in sorted(home.glob(pattern)):
            tag = owner_of_staging_folder(path.name)
            if tag is not None and not is_alive(tag) and is_unlocked(path):
                yield Leftover(kind="unfinished", name=str(path), owner=tag)


def _unmount_below(folder: Path) -> None:
    """Unmount what a killed debootstrap has mounted in its new root, innermost first. Only root has such mounts."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((p for p in points if Path(p).is_relative_to(folder)), key=len, reverse=True):
        subprocess.run(["umount", "--lazy", point], capture_output=True, check=False, timeout=_REMOVE_TIMEOUT_S)
