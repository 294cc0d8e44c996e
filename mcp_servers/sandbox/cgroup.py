"""One cgroup per server: memory and process limits of the whole process tree, enforced by the kernel.

Version 1 has a folder per controller, version 2 one folder. They are created below the harness's own cgroup, which
takes root or a delegated subtree. On version 2 a cgroup that has processes cannot enable controllers for its children.
So a harness that is alone in its cgroup moves itself one level down; a harness that is not alone gets no cgroups, and
the watchdog enforces the limits. The module uses plain system calls, not pathlib: every episode creates a cgroup.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.process_owner import owner

_REMOVE_TIMEOUT_S = 5.0
_REMOVE_AGAIN_S = 0.0005
LARGEST_CHARGE_BYTES = 4_000_000
"""Bytes below its limit at which a cgroup may be refused memory: a huge page has 2 MB."""
_CONTROLLERS = frozenset({"memory", "pids"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Hierarchy:
    """Folders of the controllers below which servers' cgroups are created; in version 2 all are the same folder."""

    version: int
    memory: Path
    pids: Path
    cpu: Path | None
    """None if no controller counts CPU time: then the watchdog does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cgroup:
    version: int
    memory: Path
    pids: Path
    cpu: Path | None

    @property
    def folders(self) -> tuple[Path, ...]:
        folders = [self.memory, self.pids] + ([self.cpu] if self.cpu else [])
        return tuple(dict.fromkeys(folders))

    @property
    def join_files(self) -> tuple[str, ...]:
        """Files that a process writes ``0`` into to join, together with all processes that it starts afterwards."""
        return tuple(f"{folder}/cgroup.procs" for folder in self.folders)

    def oom_kills(self) -> int:
        """Number of processes that the kernel killed because the tree had used up its memory.

        0 if the tree never met its own limit: then the machine, or a cgroup above, had no more memory.
        """
        if self.version == 2:
            events = f"{self.memory}/memory.events"
            return _counter(events, "oom_kill") if _counter(events, "oom") else 0
        kills = _counter(f"{self.memory}/memory.oom_control", "oom_kill")
        return kills if kills and any(_met_limit(f"{self.memory}/memory{part}") for part in ("", ".memsw")) else 0

    def count_refused_forks(self) -> int:
        return _counter(f"{self.pids}/pids.events", "max")

    def cpu_s(self) -> float | None:
        if self.cpu is None:
            return None
        if self.version == 2:
            return _counter(f"{self.cpu}/cpu.stat", "usage_usec") / 1e6
        return int(_read(f"{self.cpu}/cpuacct.usage") or 0) / 1e9

    def raise_memory(self, memory_mb: int) -> None:
        """Set a higher memory limit. Raises OSError if the machine refuses."""
        memory = str(memory_mb * 1_000_000)
        if self.version == 2:
            _write(f"{self.memory}/memory.max", memory)
        else:
            _write_if_there(f"{self.memory}/memory.memsw.limit_in_bytes", memory)  # never below the next one
            _write(f"{self.memory}/memory.limit_in_bytes", memory)

    def processes(self) -> list[int]:
        return [int(pid) for pid in _read(f"{self.pids}/cgroup.procs").split()]

    def take(self, pids: Iterable[int]) -> int:
        """Move processes into this cgroup, and return how many were moved. Raises OSError."""
        count = 0
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                for file in self.join_files:
                    _write(file, str(pid))
                count += 1
        return count

    def kill(self) -> None:
        """Send SIGKILL to every process inside; none of them can start another any more."""
        with contextlib.suppress(OSError):
            (self.pids / "pids.max").write_text("0")
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def remove(self) -> bool:
        """Remove the folders; True once they are gone, False while a killed process in them has not ended yet."""
        gone = True
        for folder in self.folders:
            try:
                os.rmdir(folder)
            except FileNotFoundError:
                continue
            except OSError:  # EBUSY
                gone = False
        return gone

    async def remove_when_empty(self) -> None:
        """Repeat `remove` until it succeeds. If a process does not die in time, or this is cancelled, `create` tries it
        again, and at last `find_leftovers`."""
        _UNREMOVED.add(self)
        deadline = time.monotonic() + _REMOVE_TIMEOUT_S
        while not self.remove():
            if time.monotonic() > deadline:
                return
            await asyncio.sleep(_REMOVE_AGAIN_S)
        _UNREMOVED.discard(self)


_UNREMOVED: set[Cgroup] = set()
"""Cgroups of ended servers whose folders are not removed yet."""


def create(hierarchy: Hierarchy, name: str, limits: Limits, *, sandbox_processes: int) -> Cgroup:
    """Create a cgroup with these limits, after removing older ones in which a process had not ended yet.

    Raises OSError if the machine refuses.
    """
    _UNREMOVED.difference_update([group for group in _UNREMOVED if group.remove()])
    group = Cgroup(
        version=hierarchy.version,
        memory=hierarchy.memory / name,
        pids=hierarchy.pids / name,
        cpu=hierarchy.cpu / name if hierarchy.cpu else None,
    )
    memory = limits.memory_mb * 1_000_000
    try:
        for folder in group.folders:
            os.mkdir(folder)
        _write(f"{group.pids}/pids.max", str(limits.processes + sandbox_processes))
        if hierarchy.version == 2:
            _write(f"{group.memory}/memory.max", str(memory))
            _write_if_there(f"{group.memory}/memory.swap.max", "0")
            _write_if_there(f"{group.memory}/memory.oom.group", "1")
        else:
            _write(f"{group.memory}/memory.limit_in_bytes", str(memory))
            _write_if_there(f"{group.memory}/memory.memsw.limit_in_bytes", str(memory))
    except OSError:
        group.remove()
        raise
    return group


def find_own_folder() -> Path | None:
    """This process's cgroup as it is now, in the hierarchy that limits memory; None without one."""
    places = find_folders(Path("/proc/self/mountinfo").read_text(), _read("/proc/self/cgroup"))
    return places.get("memory") or places.get("")


def prepare_moves(own: Path) -> None:
    """Have the kernel begin what the first of several moves waits for, by a move of this process to its own cgroup.

    Takes some 10 ms, in which other threads go on; moves in the next milliseconds do not wait. Does nothing if the
    machine refuses.
    """
    with contextlib.suppress(OSError):
        _write(f"{own}/cgroup.procs", "0")


@functools.cache
def usable_hierarchy() -> Hierarchy | None:
    """Folders in which this process can create cgroups with memory and process limits, tried once; else None."""
    hierarchy = find_hierarchy(
        Path("/proc/self/mountinfo").read_text(), _read("/proc/self/cgroup") if _has_cgroups() else ""
    )
    if hierarchy is None:
        return None
    try:
        if hierarchy.version == 2:
            _enable_controllers(hierarchy.memory)
        create(hierarchy, f"gymcp-{owner()}-probe", Limits(), sandbox_processes=0).remove()
    except OSError:
        return None
    return hierarchy


def find_hierarchy(mountinfo: str, own_cgroups: str) -> Hierarchy | None:
    """This process's own cgroup folders, writable or not, by /proc/self/mountinfo and /proc/self/cgroup."""
    places = find_folders(mountinfo, own_cgroups)
    if "memory" in places and "pids" in places:
        return Hierarchy(version=1, memory=places["memory"], pids=places["pids"], cpu=places.get("cpuacct"))
    if "" in places and not {"memory", "pids"} & places.keys():
        return Hierarchy(version=2, memory=places[""], pids=places[""], cpu=places[""])
    return None


def find_folders(mountinfo: str, own_cgroups: str) -> dict[str, Path]:
    """This process's own cgroup folder by the name of its controller; that of version 2 by an empty name.

    A container sees a hierarchy from its own root on: a folder is the mount point plus the path below the mount's root.
    """
    places: dict[str, Path] = {}
    own = dict(line.split(":", 2)[1:] for line in own_cgroups.splitlines())
    for line in mountinfo.splitlines():
        fields = line.split()
        kind, _, options = fields[fields.index("-", 6) + 1 :][:3]
        root, mountpoint = fields[3], Path(fields[4])
        if kind == "cgroup2":
            names = {"": ""}
        elif kind == "cgroup":
            names = {option: key for key in own for option in key.split(",") if key and option in options.split(",")}
        else:
            continue
        for name, key in names.items():
            if key in own and PurePosixPath(own[key]).is_relative_to(root):
                places.setdefault(name, mountpoint / PurePosixPath(own[key]).relative_to(root))
    return places


def _enable_controllers(own: Path) -> None:
    switch = own / "cgroup.subtree_control"
    if set(_read(str(switch)).split()) >= _CONTROLLERS:
        return
    if (own / "cgroup.procs").read_text().split() == [str(os.getpid())]:
        leaf = own / f"gymcp-{owner()}-harness"
        leaf.mkdir(exist_ok=True)
        (leaf / "cgroup.procs").write_text("0")
    switch.write_text(" ".join(f"+{controller}" for controller in sorted(_CONTROLLERS)))


def _has_cgroups() -> bool:
    return Path("/proc/self/cgroup").exists()


def _read(path: str) -> str:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        parts = []
        while part := os.read(fd, 65_536):
            parts.append(part)
        return b"".join(parts).decode()
    except OSError:
        return ""
    finally:
        os.close(fd)


def _met_limit(memory: str) -> bool:
    """True if the largest use came near the limit; version 1 counts refusals, but not on every kernel."""
    used, limit = (_read(f"{memory}.{name}") for name in ("max_usage_in_bytes", "limit_in_bytes"))
    return bool(used and limit) and int(used) + LARGEST_CHARGE_BYTES >= int(limit)


def _counter(path: str, name: str) -> int:
    for line in _read(path).splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0


def _write(path: str, value: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)


def _write_if_there(path: str, value: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        _write(path, value)
