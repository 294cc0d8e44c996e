"""CPU cores, memory and open files that this process may use: the machine's, or less if a control group limits them."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import resource
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from gymcp.mcp_servers.sandbox.cgroup import find_folders
from gymcp.mcp_servers.sandbox.spec import Limits

FREE_MEMORY_FACTOR = 2
"""Memory that must be free for one more server, as a multiple of its memory limit."""
MB = 1e6
MAX_LIMIT_BYTES = 1 << 60
"""Bytes of a limit above which it is none: version 1 writes the largest number that it knows."""
MAX_OPEN_FILES = 1 << 20
"""Open files if the process has no limit, which is then -1."""
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """CPU cores and free memory for the processes of a run, and open files of this process."""

    cores: float
    """Number of cores; a fraction if a control group grants a part of one."""
    free_memory_mb: float
    """Memory that the kernel could give out without swapping."""
    open_files: int
    """Files that this process may have open."""
    is_cpu_quota: bool = False
    """True if a control group allows less CPU time than the cores have."""
    is_memory_limit: bool = False
    """True if a control group leaves less memory than the machine has free."""


def read_machine_limits(proc: Path = _PROC) -> MachineLimits:
    """The limits now. `proc`: the mounted proc filesystem."""
    folders = _find_own_folders(proc)
    cores, quota = len(os.sched_getaffinity(0)), _read_quota(folders)
    free, allowed = _read_available_mb(proc), _read_allowed_mb(folders)
    return MachineLimits(
        cores=cores if quota is None else min(cores, quota),
        free_memory_mb=free if allowed is None else min(free, allowed),
        open_files=MAX_OPEN_FILES if (files := resource.getrlimit(resource.RLIMIT_NOFILE)[0]) < 0 else files,
        is_cpu_quota=quota is not None and quota < cores,
        is_memory_limit=allowed is not None and allowed < free,
    )


def free_memory_mb() -> float:
    """Megabytes of memory that the kernel could give to this process and its children without swapping."""
    free, allowed = _read_available_mb(_PROC), _read_allowed_mb(_find_own_folders(_PROC))
    return free if allowed is None else min(free, allowed)


def memory_to_keep_free_mb(limits: Iterable[Limits]) -> float:
    """Megabytes that must be free before an episode with servers of these limits starts beside others."""
    return FREE_MEMORY_FACTOR * max((each.memory_mb for each in limits), default=0)


def count_oom_kills(proc: Path = _PROC) -> int:
    """Number of processes that the kernel of this machine has ended for lack of memory; 0 if it does not say."""
    found = re.search(r"^oom_kill (\d+)$", _read(proc / "vmstat"), re.MULTILINE)
    return int(found[1]) if found is not None else 0


@functools.cache
def _find_own_folders(proc: Path) -> Mapping[str, Path]:
    """Folders of this process's control groups, by controller; read once, because every episode asks."""
    texts = (_read(proc / "self/mountinfo"), _read(proc / "self/cgroup"))
    return find_folders(*texts) if all(texts) else {}


def _read_available_mb(proc: Path) -> float:
    fields = dict(line.split(":", 1) for line in (proc / "meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024 / MB


def _read_quota(folders: Mapping[str, Path]) -> float | None:
    """Cores' worth of CPU time that the group and all groups around it allow; None: no quota."""
    quotas = [_parse_quota(_read(level / "cpu.max").split()) for level in _list_levels(folders.get(""))]
    for level in _list_levels(folders.get("cpu")):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        quotas.append(_parse_quota([_read(level / name).strip() for name in names]))
    return min((quota for quota in quotas if quota is not None), default=None)


def _parse_quota(words: list[str]) -> float | None:
    """Cores of (quota, period) in microseconds; None for ``max``, -1 or absent files."""
    if len(words) != 2 or not words[0].isdecimal() or not words[1].isdecimal() or int(words[1]) == 0:
        return None
    return int(words[0]) / int(words[1])


def _read_allowed_mb(folders: Mapping[str, Path]) -> float | None:
    """Memory that the group and all groups around it still allow; None: no limit. A cache of files counts as free."""
    allowed = [
        _subtract_used(level, "memory.max", "memory.current", "inactive_file")
        for level in _list_levels(folders.get(""))
    ]
    allowed += [
        _subtract_used(level, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        for level in _list_levels(folders.get("memory"))
    ]
    return min((each for each in allowed if each is not None), default=None)


def _subtract_used(level: Path, limit_file: str, used_file: str, cache_key: str) -> float | None:
    """Megabytes that are left of the group's limit; None if it has none."""
    limit = _read(level / limit_file).strip()
    if not limit.isdecimal() or int(limit) > MAX_LIMIT_BYTES:
        return None
    used = _read(level / used_file).strip() or "0"
    counters = dict(line.split(" ", 1) for line in _read(level / "memory.stat").splitlines() if " " in line)
    return max(0, int(limit) - int(used) + int(counters.get(cache_key, 0))) / MB


def _list_levels(folder: Path | None) -> Iterator[Path]:
    """The group's folder and those of the groups around it, as far as they can be seen."""
    while folder is not None and (folder / "cgroup.procs").exists():
        yield folder
        folder = folder.parent


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""
