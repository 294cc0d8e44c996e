"""CPU, memory and files that this process may use: the machine's, or those of its control groups."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from equipment import require_cgroup

from gymcp.mcp_servers.machine_limits import MAX_OPEN_FILES, free_memory_mb, read_machine_limits
from gymcp.mcp_servers.sandbox.cgroup import create, find_own_folder, prepare_moves
from gymcp.mcp_servers.sandbox.spec import Limits

GIB = 1 << 30
CORES = len(os.sched_getaffinity(0))
REPORT = """
from gymcp.mcp_servers.machine_limits import free_memory_mb, read_machine_limits
sys.stdin.read(1)
limits = read_machine_limits()
print(limits.cores, limits.free_memory_mb, limits.open_files, limits.is_memory_limit, free_memory_mb())
"""
TIMEOUT_S = 60


def write(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"cgroup.procs": "1\n", **files}.items():
        (folder / name).write_text(f"{text}\n")


def make_proc(root: Path, mounts: str, own: str, available_kib: int = 8 * GIB // 1024) -> Path:
    """A proc filesystem of a process in a control group."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: 99 kB\nMemAvailable: {available_kib} kB\n")
    (root / "proc/self/mountinfo").write_text(mounts)
    (root / "proc/self/cgroup").write_text(own)
    return root / "proc"


def make_v2(root: Path, group: Mapping[str, str], above: Mapping[str, str]) -> Path:
    """A process in a group inside another one, both below the root of version 2."""
    mount = root / "cgroup"
    for path, files in ((mount, {}), (mount / "pod", above), (mount / "pod/box", group)):
        write(path, files)
    return make_proc(root, f"30 23 0:26 / {mount} rw shared:4 - cgroup2 cgroup2 rw\n", "0::/pod/box\n")


def test_without_control_groups_the_machine_is_the_limit(tmp_path: Path) -> None:
    limits = read_machine_limits(make_proc(tmp_path, "", ""))
    assert (limits.cores, limits.free_memory_mb) == (CORES, 8 * GIB / 1e6)
    assert (limits.is_cpu_quota, limits.is_memory_limit) == (False, False)


def test_the_memory_of_a_container_is_its_limit_without_its_use_but_with_its_file_cache(tmp_path: Path) -> None:
    used = {"memory.current": str(1_500_000_000), "memory.stat": "anon 1\ninactive_file 900000000"}
    proc = make_v2(tmp_path, {"memory.max": str(2_000_000_000), **used}, {"memory.max": "max"})
    limits = read_machine_limits(proc)
    assert (limits.free_memory_mb, limits.is_memory_limit) == (1_400, True)


def test_a_group_around_the_own_one_may_be_the_narrower_one(tmp_path: Path) -> None:
    above = {"memory.max": "1000000000", "memory.current": "990000000", "cpu.max": "25000 100000"}
    proc = make_v2(tmp_path, {"memory.max": "5000000000", "memory.current": "0", "cpu.max": "max 100000"}, above)
    limits = read_machine_limits(proc)
    assert (limits.free_memory_mb, limits.cores, limits.is_cpu_quota) == (10, 0.25, True)


def test_a_group_that_uses_more_than_its_limit_has_nothing_left(tmp_path: Path) -> None:
    proc = make_v2(tmp_path, {"memory.max": "1000", "memory.current": "2000"}, {})
    assert read_machine_limits(proc).free_memory_mb == 0


def test_a_quota_above_the_cores_is_no_limit(tmp_path: Path) -> None:
    limits = read_machine_limits(make_v2(tmp_path, {"cpu.max": f"{(CORES + 1) * 100_000} 100000"}, {}))
    assert (limits.cores, limits.is_cpu_quota) == (CORES, False)


def test_version_1_has_its_limits_in_a_folder_for_each_controller(tmp_path: Path) -> None:
    cpu, memory = tmp_path / "cpu", tmp_path / "memory"
    write(cpu, {"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"})
    write(memory, {"memory.limit_in_bytes": str((1 << 63) - 4096), "memory.usage_in_bytes": "1"})
    write(
        memory / "box",
        {
            "memory.limit_in_bytes": "300000000",
            "memory.usage_in_bytes": "200000000",
            "memory.stat": "inactive_file 1\ntotal_inactive_file 50000000",
        },
    )
    mounts = (
        f"33 31 0:30 /docker/ab {cpu} rw - cgroup cgroup rw,cpu,cpuacct\n"
        f"35 31 0:32 /docker/ab {memory} rw shared:9 - cgroup cgroup rw,memory\n"
    )
    proc = make_proc(tmp_path, mounts, "4:memory:/docker/ab/box\n3:cpu,cpuacct:/docker/ab\n0::/\n")
    limits = read_machine_limits(proc)
    assert (limits.cores, limits.free_memory_mb) == (0.5, 150)
    assert (limits.is_cpu_quota, limits.is_memory_limit) == (True, True)


@pytest.mark.parametrize("text", ["", "many few", "0 0", "100000"])
def test_an_unreadable_quota_is_no_quota(tmp_path: Path, text: str) -> None:
    assert read_machine_limits(make_v2(tmp_path, {"cpu.max": text}, {})).cores == CORES


def report(prepare: str, group: str = "") -> list[str]:
    """The limits that another process reads for itself after `prepare`, in the control group of that name."""
    command = [sys.executable, "-c", f"import os, resource, sys\n{prepare}\n{REPORT}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if not group:
            return process.communicate("x", timeout=TIMEOUT_S)[0].split()
        cgroup = create(require_cgroup(), group, Limits(memory_mb=300), sandbox_processes=8)
        try:
            cgroup.take([process.pid])
            return process.communicate("x", timeout=TIMEOUT_S)[0].split()
        finally:
            process.wait(TIMEOUT_S)
            cgroup.remove()


def test_the_cores_and_files_of_a_process_are_those_that_it_may_use() -> None:
    prepare = "os.sched_setaffinity(0, [max(os.sched_getaffinity(0))]); resource.setrlimit(7, (200, 200))"
    cores, _, files, *_ = report(prepare)
    assert (float(cores), files) == (1, "200")
    assert 0 < read_machine_limits().open_files <= MAX_OPEN_FILES


def test_a_process_in_a_real_control_group_has_what_that_leaves() -> None:
    require_cgroup()
    _, free, _, is_limit, gate = report("", group=f"gymcp-test-limits-{os.getpid()}")
    assert is_limit == "True"
    assert 0 < float(free) <= 300 < free_memory_mb()
    assert 0 < float(gate) <= 300


def test_moves_are_prepared_without_moving_the_harness() -> None:
    require_cgroup()
    own = find_own_folder()
    assert own is not None
    assert str(os.getpid()) in (own / "cgroup.procs").read_text().split()
    before = Path("/proc/self/cgroup").read_text()
    prepare_moves(own)
    assert Path("/proc/self/cgroup").read_text() == before
    prepare_moves(own / "none")  # a machine that refuses
