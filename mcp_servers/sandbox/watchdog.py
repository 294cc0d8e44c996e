"""Ends servers that use more than their limits: one timer for all live servers of an event loop.

Where a cgroup holds memory and processes, it only reads a counter a second. Where none does, it reads the process trees
ten times a second, and at once when the machine has many more processes than a moment ago: slower than the kernel, and
blind to memory that belongs to no process, which is why the seccomp filter then refuses memfd and System V segments.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from gymcp.mcp_servers.sandbox.cgroup import Cgroup
from gymcp.mcp_servers.sandbox.proctree import attribute, proportional_bytes, read_processes, usage
from gymcp.mcp_servers.sandbox.spec import Limits
from gymcp.mcp_servers.sandbox.workspace import ENTRY_BYTES, AddedBytes

_TREE_PERIOD_S = 0.1
_PULSE_PERIOD_S = 0.01
_DISK_PERIOD_S = 0.25
_COUNTER_PERIOD_S = 1.0
_OWN_FOLDERS = ("/tmp", "/dev/shm")

log = logging.getLogger(__name__)


class Watched(Protocol):
    @property
    def pid(self) -> int: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def cgroup(self) -> Cgroup | None: ...
    @property
    def workspace(self) -> Path | None: ...
    @property
    def spare_processes(self) -> int:
        """Of the sandbox itself: not counted."""
        ...

    @property
    def inside_pid(self) -> int | None:
        """A process that sees the sandbox's own folders; None where it has none, or is not known."""
        ...

    def end(self, limit: str) -> None: ...


class _Entry:
    def __init__(self, watched: Watched) -> None:
        self.watched = watched
        self.next_counters = 0.0
        limits = watched.limits
        # A spawner has no CPU limit unless a cgroup counts for it: what was once seen as its own would stay so, and its
        # servers are watched one by one.
        # No tree hangs on -1, but a dying process, of whomever, is said to be in session -1.
        self.needs_tree = (
            watched.pid > 0 and limits.cpu_s < math.inf and (watched.cgroup is None or watched.cgroup.cpu is None)
        )
        self.pids: tuple[int, ...] = ()
        """If no cgroup tells: the tree as it was seen last."""
        self.disk = (
            AddedBytes(watched.workspace, limits.disk_mb * 1_000_000, self.processes) if watched.workspace else None
        )
        self.cpu_s = 0.0
        """The most seen: a child that nobody waits for takes its time with it."""

    def processes(self) -> Iterable[int]:
        return self.watched.cgroup.processes() if self.watched.cgroup is not None else self.pids


class Watchdog:
    def __init__(self) -> None:
        self._entries: dict[Watched, _Entry] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._known: dict[tuple[int, int], int] = {}
        self._next_checks = 0.0
        self._processes_then = 0

    def add(self, watched: Watched) -> None:
        entry = self._entries[watched] = _Entry(watched)
        if entry.disk is not None:
            entry.disk.step(folders=len(self._entries))  # what is there before the server can have written
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
        """The processes that descend from this one now, by what is known of them."""
        processes = read_processes()
        of = attribute(processes, {entry.watched.pid for entry in self._entries.values()} | {pid}, self._known)
        found = usage(processes, of).get(pid)
        return found.pids if found else ()

    def _tick(self) -> None:
        loop = asyncio.get_running_loop()
        trees = [entry for entry in self._entries.values() if entry.needs_tree]
        if loop.time() >= self._next_checks or (trees and self._is_burst(trees)):
            for entry in list(self._entries.values()):
                try:
                    self._check(entry, loop.time())
                except Exception:  # one server's odd folder must not leave all the others unwatched
                    log.exception("watchdog: process %d could not be checked", entry.watched.pid)
            if trees:
                self._check_trees(trees)
            self._next_checks = loop.time() + (_TREE_PERIOD_S if trees else _DISK_PERIOD_S)
        self._timer = loop.call_later(_PULSE_PERIOD_S if trees else _DISK_PERIOD_S, self._tick)

    def _is_burst(self, entries: list[_Entry]) -> bool:
        """A fork bomb grows faster than trees are read; the link count of /proc is how many processes there are."""
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
            if _own_files(watched) > files_allowed(limits):
                watched.end(files_limit(limits))
        elif watched.cgroup.oom_kills():
            watched.end(memory_limit(limits))
        elif (watched.cgroup.cpu_s() or 0.0) > limits.cpu_s:
            watched.end(cpu_limit(limits))

    def _check_trees(self, entries: list[_Entry]) -> None:
        self._processes_then = Path("/proc").stat().st_nlink
        processes = read_processes()
        of = attribute(processes, {entry.watched.pid for entry in entries}, self._known)
        self._known = {(pid, processes[pid].started): root for pid, root in of.items() if pid in processes}
        trees = usage(processes, of)
        for entry in entries:
            watched, limits = entry.watched, entry.watched.limits
            if (tree := trees.get(watched.pid)) is None:
                continue
            entry.pids = tree.pids
            entry.cpu_s = max(entry.cpu_s, tree.cpu_s)
            memory = limits.memory_mb * 1_000_000
            if entry.cpu_s > limits.cpu_s:
                watched.end(cpu_limit(limits))
            elif watched.cgroup is not None:
                continue
            elif tree.tasks > limits.processes + watched.spare_processes:
                watched.end(process_limit(limits))
            elif tree.rss_bytes + tree.table_bytes > memory and proportional_bytes(tree.pids) > memory:
                watched.end(memory_limit(limits))


def _own_files(watched: Watched) -> int:
    """How many are in folders that are the sandbox's alone: empty ones have no size, and cost the kernel memory.

    What it can only read, such as a world that is digested, it has not made.
    """
    root = Path(f"/proc/{watched.inside_pid}/root")
    folders = (*_OWN_FOLDERS, *(() if watched.workspace else ("/workspace",)))
    try:
        if watched.inside_pid is None or root.samefile("/"):  # still on its way in
            return 0
        found = [os.statvfs(f"{root}{folder}") for folder in folders]
    except OSError:
        return 0
    return sum(folder.f_files - folder.f_ffree for folder in found if not folder.f_flag & os.ST_RDONLY)


_watchdogs: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Watchdog] = weakref.WeakKeyDictionary()


def watchdog() -> Watchdog:
    """The running loop's."""
    return _watchdogs.setdefault(asyncio.get_running_loop(), Watchdog())


def memory_limit(limits: Limits) -> str:
    return f"memory: the process tree used more than {limits.memory_mb} MB"


def process_limit(limits: Limits) -> str:
    return f"processes: the tree had more than {limits.processes} processes and threads"


def cpu_limit(limits: Limits) -> str:
    return f"cpu: the process tree used more than {limits.cpu_s:g} s of CPU time"


def files_allowed(limits: Limits) -> int:
    return limits.disk_mb * 1_000_000 // ENTRY_BYTES


def files_limit(limits: Limits) -> str:
    return f"disk: more than {files_allowed(limits)} files in folders of its own"
