"""What process trees use, read from /proc in one pass for all of them: the watchdog's eyes where no cgroup counts."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_ENTRY = 8
"""Bytes of a page table for each page."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    pid: int
    parent: int
    session: int
    started: int
    cpu_s: float
    """Its own and that of the children it has waited for."""
    tasks: int
    """Threads, as the pids cgroup counts them."""
    rss_bytes: int
    virtual_bytes: int
    zombie: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeUsage:
    pids: tuple[int, ...] = ()
    cpu_s: float = 0.0
    tasks: int = 0
    rss_bytes: int = 0
    table_bytes: int = 0
    """The most that page tables can take; no resident set has them in it."""


def read_processes() -> dict[int, ProcessStat]:
    """Every process that can be seen, by its id."""
    found = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 (iterdir costs twice as much)
    return {process.pid: process for process in found if process is not None}


def _read(pid: int) -> ProcessStat | None:
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)  # a third of the cost of Path.open
        try:
            content = os.read(fd, 1024)
        finally:
            os.close(fd)
    except OSError:
        return None
    fields = content[content.rindex(b")") + 2 :].split()
    return ProcessStat(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_s=sum(int(value) for value in fields[11:15]) / _TICKS_PER_S,
        tasks=int(fields[17]),
        started=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE,
        virtual_bytes=int(fields[20]),
        zombie=fields[0] in (b"Z", b"X"),
    )


def attribute(
    processes: Mapping[int, ProcessStat], roots: Collection[int], known: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Process id -> the root it descends from, for those that descend from one.

    ``known`` says so of processes, by (id, start time), seen earlier: one whose parent has died is still found.
    """
    of: dict[int, int] = {root: root for root in roots}
    for process in processes.values():
        path = []
        current: ProcessStat | None = process
        while current is not None and current.pid not in of:
            path.append(current.pid)
            root = known.get((current.pid, current.started), current.session if current.session in roots else None)
            if root is not None:
                of[current.pid] = root
                break
            current = processes.get(current.parent)
        end = of.get(current.pid, 0) if current is not None else 0
        of.update(dict.fromkeys(path, end))
    return {pid: root for pid, root in of.items() if root != 0}


def usage(processes: Mapping[int, ProcessStat], of: Mapping[int, int]) -> dict[int, TreeUsage]:
    """Root -> the sum over its tree. Resident pages that several share are counted for each."""
    trees: dict[int, list[ProcessStat]] = {}
    for pid, root in of.items():
        if pid in processes and not processes[pid].zombie:
            trees.setdefault(root, []).append(processes[pid])
    return {
        root: TreeUsage(
            pids=tuple(process.pid for process in tree),
            cpu_s=sum(process.cpu_s for process in tree),
            tasks=sum(process.tasks for process in tree),
            rss_bytes=sum(process.rss_bytes for process in tree),
            table_bytes=sum(process.virtual_bytes for process in tree) * _ENTRY // _PAGE,
        )
        for root, tree in trees.items()
    }


def proportional_bytes(pids: Collection[int]) -> int:
    """Memory with shared pages divided among those who share them, and page tables: dear to read, and exact."""
    return sum(_proportional(pid) + _page_tables(pid) for pid in pids)


def _proportional(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # gone, or not ours to read: then it cannot be proved to be below its limit
        process = _read(pid)
        return process.rss_bytes if process else 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))) * 1024


def _page_tables(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith("VmPTE:")) * 1024


@functools.cache
def kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def tagged(variable: str, value: str) -> tuple[int, ...]:
    """The living processes of this user that were started with that environment variable."""
    wanted = f"{variable}={value}".encode()
    return tuple(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if wanted in _environment(pid))  # noqa: PTH208


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # a zombie's is empty
    except OSError:
        return []
