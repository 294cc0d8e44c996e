"""Resource use of process trees, read from /proc in one pass for all trees: for a watchdog without cgroups."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_PAGE_TABLE_ENTRY_BYTES = 8
"""Bytes that a page table takes for each page."""
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessStat:
    pid: int
    parent: int
    session: int
    started: int
    cpu_s: float
    """CPU time of the process and of the children it has waited for."""
    waited_cpu_s: float
    """CPU time of those children alone."""
    tasks: int
    """Number of threads, which the pids cgroup counts too."""
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
    """Upper bound of what page tables take; no resident set includes them."""


def read_processes() -> dict[int, ProcessStat]:
    """Every visible process by its id."""
    processes = (_read(int(name)) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208 (iterdir costs twice as much)
    return {process.pid: process for process in processes if process is not None}


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
        waited_cpu_s=sum(int(value) for value in fields[13:15]) / _TICKS_PER_S,
        tasks=int(fields[17]),
        started=int(fields[19]),
        rss_bytes=int(fields[21]) * _PAGE_BYTES,
        virtual_bytes=int(fields[20]),
        zombie=fields[0] in (b"Z", b"X"),
    )


def find_roots(
    processes: Mapping[int, ProcessStat], roots: Collection[int], known: Mapping[tuple[int, int], int]
) -> dict[int, int]:
    """Process id -> the root it descends from; processes that descend from no root are left out.

    ``known`` is the result for processes seen earlier, by (id, start time): so a process whose parent has died since
    is still found.
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


def sum_by_root(processes: Mapping[int, ProcessStat], of: Mapping[int, int]) -> dict[int, TreeUsage]:
    """Root -> the sum over its tree. Resident pages that several processes share are counted for each of them."""
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
            table_bytes=sum(process.virtual_bytes for process in tree) * _PAGE_TABLE_ENTRY_BYTES // _PAGE_BYTES,
        )
        for root, tree in trees.items()
    }


def proportional_bytes(pids: Collection[int]) -> int:
    """Exact memory of the processes: shared pages divided among their users, plus page tables. Expensive to read."""
    return sum(_proportional_set_size(pid) + _status_bytes(pid, "VmPTE:") for pid in pids)


def swapped_bytes(pids: Collection[int]) -> int:
    """Memory of the processes that the kernel has moved to disk, which no resident set includes.

    A process may ask the kernel to move its memory (``madvise``).
    """
    return sum(_status_bytes(pid, "VmSwap:") for pid in pids)


def uses_swap(table: Path = Path("/proc/swaps")) -> bool:
    """True if a swap device of this machine holds anything: the fourth column says how much."""
    try:
        rows = [line.split() for line in table.read_text().splitlines()[1:]]
    except OSError:
        return False
    return any(len(row) > 3 and row[3] != "0" for row in rows)


def _proportional_set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended, or may not be read: then it cannot be proved to be below its limit
        process = _read(pid)
        return process.rss_bytes if process else 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Pss:", "SwapPss:"))) * 1024


def _status_bytes(pid: int, name: str) -> int:
    """A size from a process's status; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith(name)) * 1024


@functools.cache
def kernel_version() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int("".join(filter(str.isdigit, minor)) or 0)


def find_by_environment(variable: str, value: str) -> tuple[int, ...]:
    """Living processes of this user that were started with the environment variable set to this value."""
    entry = f"{variable}={value}".encode()
    return tuple(pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if entry in _environment(pid))  # noqa: PTH208


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")  # a zombie's is empty
    except OSError:
        return []
