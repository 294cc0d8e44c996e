"""Kills servers that use more than their limits: one timer for all live servers of an event loop.

For a server whose cgroup limits memory and processes, the watchdog only reads a counter once a second. For servers
without a cgroup it reads the process trees ten times a second, and at once if the machine has many more processes than
a moment ago. That is slower than the kernel, and cannot see memory that belongs to no process; therefore the seccomp
filter then refuses memfd and what System V has: segments, semaphores and message queues.

A fork server is watched as a server is, without the servers that it forked: those are watched one by one.
"""

from __future__ import annotations

import asyncio
import logging
import os
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

from gymcp.mcp_servers.sandbox.cgroup import Cgroup
from gymcp.mcp_servers.sandbox.disk_growth import ENTRY_BYTES, AddedBytes
from gymcp.mcp_servers.sandbox.proctree import (
    ProcessStat,
    TreeUsage,
    find_roots,
    proportional_bytes,
    read_processes,
    sum_by_root,
    swapped_bytes,
    uses_swap,
)
from gymcp.mcp_servers.sandbox.spec import Limits

_TREE_PERIOD_S = 0.1
_PULSE_PERIOD_S = 0.01
_DISK_PERIOD_S = 0.25
_COUNTER_PERIOD_S = 1.0
_PRIVATE_FOLDERS = ("/tmp", "/dev/shm")

log = logging.getLogger(__name__)


class Watched(Protocol):
    """A server as the watchdog sees it."""

    @property
    def pid(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def cgroup(self) -> Cgroup | None: ...
    @property
    def workspace(self) -> Path | None: ...
    @property
    def sandbox_processes(self) -> int:
        """Number of the sandbox's own processes, which do not count."""
        ...

    @property
    def inside_pid(self) -> int | None:
        """Process that sees the sandbox's private folders; None if the sandbox has none or the process is unknown."""
        ...

    @property
    def forks_servers(self) -> bool:
        """True for a fork server: processes below it are watched as servers of their own."""
        ...

    def end(self, limit: str) -> None: ...


class _Entry:
    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.next_counters = 0.0
        limits = watched.limits
        # No tree has the root -1, but /proc gives session -1 for any dying process on the machine.
        self.needs_tree = watched.pid > 0 and (watched.cgroup is None or watched.cgroup.cpu is None)
        self.pids: tuple[int, ...] = ()
        """Process tree as last seen, for a server without a cgroup."""
        self.disk = (
            AddedBytes(watched.workspace, limits.disk_mb * 1_000_000, self.processes) if watched.workspace else None
        )
        self.cpu_s = 0.0
        """Largest CPU time seen: the time of a child that is never waited for disappears with the child."""

    def processes(self) -> Iterable[int]:
        return self.watched.cgroup.processes() if self.watched.cgroup is not None else self.pids


class Watchdog:
    """The timer of one event loop, and the servers that it checks."""

    def __init__(self) -> None:
        self._entries: dict[Watched, _Entry] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[tuple[int, int], int] = {}
        self._servers: set[tuple[int, int]] = set()
        """(process id, start time) of each server that is still in /proc, though it may have ended."""
        self._next_checks = 0.0
        self._processes_then = 0

    def add(self, watched: Watched) -> None:
        entry = self._entries[watched] = _Entry(watched)
        if entry.disk is not None:
            entry.disk.step(folders=len(self._entries))  # measures the folder before the server can write to it
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(0.0, self._tick)

    def remove(self, watched: Watched) -> None:
        entry = self._entries.pop(watched, None)
        if entry is not None and entry.disk is not None:
            entry.disk.close()
        if not self._entries and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def tree(self, pid: int) -> tuple[int, ...]:
        """Processes that descend from this one now, including known ones whose parents have died."""
        processes = read_processes()
        roots = find_roots(processes, {entry.watched.pid for entry in self._entries.values()} | {pid}, self._known)
        tree = sum_by_root(processes, roots).get(pid)
        return tree.pids if tree else ()

    def count_apart(self, pid: int, find_server: Callable[[int], int | None]) -> None:
        """Count processes of the tree of `pid` for another server from now on, wherever their parents are.

        `find_server` returns the `pid` of a process's server, or None if the process stays where it is.
        """
        processes = read_processes()
        roots = find_roots(processes, {entry.watched.pid for entry in self._entries.values()} | {pid}, self._known)
        for each in [each for each, root in roots.items() if root == pid and each in processes]:
            if (server := find_server(each)) is not None:
                self._known[each, processes[each].started] = server

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        trees = [entry for entry in self._entries.values() if entry.needs_tree]
        is_urgent = any(not entry.watched.forks_servers for entry in trees)  # a fork server alone runs no calls
        if loop.time() >= self._next_checks or (trees and self._is_burst(trees)):
            for entry in list(self._entries.values()):
                try:
                    self._check(entry, loop.time())
                except Exception:  # one server's odd folder must not leave all the others unwatched
                    log.exception("watchdog: process %d could not be checked", entry.watched.pid)
            if trees:
                self._check_trees(trees)
            self._next_checks = loop.time() + (_TREE_PERIOD_S if is_urgent else _DISK_PERIOD_S)
        self._timer = loop.call_later(_PULSE_PERIOD_S if is_urgent else _DISK_PERIOD_S, self._tick)

    def _is_burst(self, entries: list[_Entry]) -> bool:
        """True if the machine has gained more processes than a server may have: a fork bomb outgrows the tree checks.

        The link count of /proc tells the number of processes at the cost of one stat.
        """
        smallest = min(entry.watched.limits.processes for entry in entries)
        return Path("/proc").stat().st_nlink - self._processes_then > smallest

    def _check(self, entry: _Entry, now: float) -> None:
        watched, limits = entry.watched, entry.watched.limits
        if entry.disk is not None and (limit := entry.disk.step(folders=len(self._entries))):
            watched.end(limit)
        if now < entry.next_counters:
            return
        entry.next_counters = now + _COUNTER_PERIOD_S
        if watched.cgroup is None:
            if _count_private_files(watched) > files_allowed(limits):
                watched.end(files_limit(limits))
        elif (limit := exceeded_limit(watched.cgroup, limits)) is not None:
            watched.end(limit)

    def _check_trees(self, entries: list[_Entry]) -> None:
        self._processes_then = Path("/proc").stat().st_nlink
        processes = read_processes()
        roots = find_roots(processes, {entry.watched.pid for entry in entries}, self._known)
        # a process of a fork server's may become a server's, and its orphans stay below the fork server
        fork_servers = {entry.watched.pid for entry in entries if entry.watched.forks_servers}
        self._known = {
            (pid, processes[pid].started): root
            for pid, root in roots.items()
            if pid in processes and root not in fork_servers
        }
        servers = {entry.watched.pid for entry in entries} - fork_servers
        self._servers = {(pid, each.started) for pid, each in processes.items() if pid in servers} | {
            (pid, started) for pid, started in self._servers if pid in processes and processes[pid].started == started
        }
        trees, swaps = sum_by_root(processes, roots), uses_swap()
        for entry in entries:
            watched, limits = entry.watched, entry.watched.limits
            if (tree := trees.get(watched.pid)) is None:
                continue
            entry.pids = tree.pids
            cpu_s = self._cpu_of_fork_server(watched, processes, roots) if watched.forks_servers else tree.cpu_s
            entry.cpu_s = max(entry.cpu_s, cpu_s)
            if entry.cpu_s > limits.cpu_s:
                watched.end(cpu_limit(limits))
            elif watched.cgroup is not None:
                continue
            elif tree.tasks > limits.processes + watched.sandbox_processes:
                watched.end(process_limit(limits))
            elif _uses_more_memory(tree, limits.memory_mb * 1_000_000, swaps=swaps):
                watched.end(memory_limit(limits))

    def _cpu_of_fork_server(
        self, watched: Watched, processes: Mapping[int, ProcessStat], roots: Mapping[int, int]
    ) -> float:
        """CPU time of a fork server and of what it left running, ended or not, without the servers that it forked.

        Those that it has waited for are subtracted: each had a limit of its own. The fork server is the child of the
        first child of process 1 of its sandbox.
        """
        first = _first_child(watched.inside_pid, processes)
        spawner = _first_child(first.pid, processes) if first is not None else None
        own = [processes[pid] for pid, root in roots.items() if root == watched.pid and pid in processes]
        used_s = sum(process.cpu_s for process in own if (process.pid, process.started) not in self._servers)
        return used_s - (spawner.waited_cpu_s if spawner is not None else 0.0)


def _first_child(pid: int | None, processes: Mapping[int, ProcessStat]) -> ProcessStat | None:
    children = [process for process in processes.values() if process.parent == pid]
    return min(children, key=lambda child: child.started, default=None)


def _uses_more_memory(tree: TreeUsage, limit_bytes: int, *, swaps: bool) -> bool:
    """True if the tree uses more memory than that. `swaps`: the machine has moved memory to disk."""
    at_most = tree.rss_bytes + tree.table_bytes + (swapped_bytes(tree.pids) if swaps else 0)
    return at_most > limit_bytes and proportional_bytes(tree.pids) > limit_bytes


def _count_private_files(watched: Watched) -> int:
    """Number of files in the sandbox's private folders: empty files have no size, but cost the kernel memory.

    Read-only folders, such as a workspace that is being digested, are left out: the server cannot have filled them.
    """
    root = Path(f"/proc/{watched.inside_pid}/root")
    folders = (*_PRIVATE_FOLDERS, *(() if watched.workspace else ("/workspace",)))
    try:
        if watched.inside_pid is None or root.samefile("/"):  # the process has not changed its root yet
            return 0
        filesystems = [os.statvfs(f"{root}{folder}") for folder in folders]
    except OSError:
        return 0
    return sum(each.f_files - each.f_ffree for each in filesystems if not each.f_flag & os.ST_RDONLY)


_watchdogs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Watchdog] = weakref.WeakKeyDictionary()


def watchdog() -> Watchdog:
    """The watchdog of the running event loop."""
    return _watchdogs.setdefault(asyncio.get_running_loop(), Watchdog())


def exceeded_limit(cgroup: Cgroup, limits: Limits) -> str | None:
    """The limit on memory or CPU time that a cgroup's processes have exceeded, in words; None if neither."""
    if cgroup.oom_kills():
        return memory_limit(limits)
    return cpu_limit(limits) if (cgroup.cpu_s() or 0.0) > limits.cpu_s else None


def memory_limit(limits: Limits) -> str:
    return f"memory: the process tree used more than {limits.memory_mb} MB"


def process_limit(limits: Limits) -> str:
    return f"processes: the tree had more than {limits.processes} processes and threads"


def cpu_limit(limits: Limits) -> str:
    return f"cpu: the process tree used more than {limits.cpu_s:g} s of CPU time"


def files_allowed(limits: Limits) -> int:
    """Largest number of files in the sandbox's private folders."""
    return limits.disk_mb * 1_000_000 // ENTRY_BYTES


def files_limit(limits: Limits) -> str:
    return f"disk: more than {files_allowed(limits)} files in folders of its own"
