"""Limits hold for the whole tree, with cgroups and without; see also tests/adversarial/test_exhaustion.py."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from equipment import require_cgroup
from sandbox_runs import DAEMON, python

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.sandbox import Launch, Limits
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.cgroup import Cgroup, Hierarchy, create, find_hierarchy
from gymcp.mcp_servers.sandbox.proctree import uses_swap
from gymcp.process_owner import owner

ToEnd = Callable[..., Any]
TIMEOUT_S = 120.0

FOUR_CHILDREN = """
import os, signal
for _ in range(4):
    if os.fork() == 0:
        kept = bytearray(os.urandom(1)) * 80_000_000
        signal.pause()
signal.pause()
"""
FORKS_UNTIL_REFUSED = """
import os, signal
count = 0
try:
    while count < 500:
        if os.fork() == 0:
            signal.pause()
        count += 1
except OSError:
    pass
print(count)
"""
SPIN_IN_CHILDREN = """
import os
os.fork(); os.fork()
while True: pass
"""


def test_memory_limit_holds_for_the_whole_tree(limited: Bubblewrap, to_end: ToEnd) -> None:
    ended = to_end(limited, FOUR_CHILDREN, Launch(argv=(), limits=Limits(memory_mb=200)))
    assert (ended.limit, ended.status) == ("memory: the process tree used more than 200 MB", 137)


def test_memory_of_no_process_is_bounded(limited: Bubblewrap, to_end: ToEnd) -> None:
    """A memfd is in no resident set: the kernel counts it for a cgroup, the filter refuses it where there is none."""
    code = (
        "import os\nfd = os.memfd_create('x')\nwritten = 0\n"
        "while written < 400_000_000: written += os.write(fd, bytes(1_000_000))\nprint(written)"
    )
    ended = to_end(limited, code, Launch(argv=(), limits=Limits(memory_mb=200)))
    assert ended.out == ""
    refused = "Function not implemented" in ended.err or "Cannot allocate memory" in ended.err
    assert ended.limit is not None or refused, ended.err


SWAPS = "Filename\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"


@pytest.mark.parametrize(
    ("rows", "used"), [("", False), ("/dev/vdb partition 4194300 0 -2\n", False), ("/swap file 1024 256 -2\n", True)]
)
def test_swap_counts_only_if_something_is_on_it(rows: str, used: bool, tmp_path: Path) -> None:
    (tmp_path / "swaps").write_text(SWAPS + rows)
    assert (uses_swap(tmp_path / "swaps"), uses_swap(tmp_path / "none")) == (used, False)


def test_below_its_limits_a_server_lives(limited: Bubblewrap, to_end: ToEnd) -> None:
    ended = to_end(limited, FOUR_CHILDREN.replace("signal.pause()", "os._exit(0)"), Launch(argv=()))
    assert (ended.limit, ended.status) == (None, 0), ended.err


def test_process_limit_holds(bwrap: Bubblewrap, to_end: ToEnd) -> None:
    require_cgroup()
    ended = to_end(bwrap, FORKS_UNTIL_REFUSED, Launch(argv=(), limits=Limits(processes=20)))
    assert ended.out == "19\n"  # and itself


def test_cpu_limit_ends_a_spinning_server(limited: Bubblewrap, to_end: ToEnd) -> None:
    ended = to_end(limited, SPIN_IN_CHILDREN, Launch(argv=(), limits=Limits(cpu_s=0.3)))
    assert (ended.limit, ended.status) == ("cpu: the process tree used more than 0.3 s of CPU time", 137)


@pytest.mark.parametrize("turns", range(12))
def test_cancelled_while_it_starts(bwrap: Bubblewrap, turns: int, tmp_path: Path) -> None:
    """Wherever in the start the cancellation falls, no process keeps the pipe open."""
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    async def serve() -> None:
        async with bwrap.start(python(DAEMON, workspace=tmp_path)):
            await asyncio.sleep(TIMEOUT_S)

    async def cancel() -> None:
        task = asyncio.create_task(serve())
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    before = _ours()  # processes that live as long as this one: the mounter, the reaper of containers
    asyncio.run(cancel())
    assert os.read(alive, 1) in (b"", b"x")
    os.close(alive)
    assert _ours() <= before


def _ours() -> set[str]:
    """Process ids that carry this process's mark."""
    mark = f"GYMCP_OWNER={owner()}".encode()
    return {path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if mark in _read(path)}


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_a_missing_program_is_an_error(bwrap: Bubblewrap) -> None:
    async def start() -> tuple[int, str]:
        async with bwrap.start(Launch(argv=("no-such-program",))) as process:
            status = await process.wait()
            await process.stdout.read()
            return status, process.stderr_tail()

    status, err = asyncio.run(start())
    assert status == 127
    assert "no-such-program: not found" in err


def test_a_sandbox_that_fails_to_start_is_an_infrastructure_error(bwrap: Bubblewrap) -> None:
    async def start() -> None:
        async with bwrap.start(Launch(argv=("true",), env={"A=B": "x"})):
            pass

    with pytest.raises(EnvInfraError, match="the sandbox did not start: bwrap: setenv failed"):
        asyncio.run(start())


def test_sixty_four_servers_at_once(bwrap: Bubblewrap) -> None:
    async def echo(number: int) -> bytes:
        async with bwrap.start(Launch(argv=("cat",))) as process:
            process.stdin.write(b"%d\n" % number)
            return await process.stdout.readline()

    async def all_of_them() -> list[bytes]:
        async with asyncio.timeout(TIMEOUT_S):
            return await asyncio.gather(*(echo(number) for number in range(64)))

    assert asyncio.run(all_of_them()) == [b"%d\n" % number for number in range(64)]


V1_MOUNTS = """
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
33 31 0:30 /docker/ab /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 /docker/ab /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
""".strip()
V1_OWN = "4:memory:/docker/ab/x\n3:cpu,cpuacct:/docker/ab\n2:pids:/\n0::/"
V2_MOUNTS = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate"


def test_own_place_in_cgroup_hierarchies() -> None:
    root = Path("/sys/fs/cgroup")
    assert find_hierarchy(V1_MOUNTS, V1_OWN) == Hierarchy(
        version=1, memory=root / "memory/x", pids=root / "pids", cpu=root / "cpu,cpuacct"
    )
    scope = root / "user.slice/a.scope"
    assert find_hierarchy(V2_MOUNTS, "0::/user.slice/a.scope") == Hierarchy(
        version=2, memory=scope, pids=scope, cpu=scope
    )
    assert find_hierarchy(V1_MOUNTS, "") is None
    assert find_hierarchy("", "0::/") is None


def test_waiting_for_a_cgroup_to_empty_lets_other_episodes_go_on(tmp_path: Path) -> None:
    held = tmp_path / "held"
    (held / "process").mkdir(parents=True)
    group = Cgroup(version=2, memory=held, pids=held, cpu=None)

    async def main() -> None:
        removed = asyncio.create_task(group.remove_when_empty())
        for _ in range(5):
            await asyncio.sleep(0)
        assert not removed.done()
        (held / "process").rmdir()
        await removed
        assert not held.exists()

    asyncio.run(asyncio.wait_for(main(), timeout=TIMEOUT_S))


def test_a_cgroup_that_could_not_be_removed_is_removed_when_the_next_one_is_created(tmp_path: Path) -> None:
    """The server of the cgroup was cancelled while a killed process had not ended yet."""
    hierarchy = Hierarchy(version=2, memory=tmp_path, pids=tmp_path, cpu=tmp_path)
    folder = tmp_path / "late"
    late = Cgroup(version=2, memory=folder, pids=folder, cpu=folder)
    folder.mkdir()
    (folder / "process").touch()

    async def remove_for_a_moment() -> None:
        async with asyncio.timeout(0.01):
            await late.remove_when_empty()

    with pytest.raises(TimeoutError):
        asyncio.run(remove_for_a_moment())
    (folder / "process").unlink()
    with contextlib.suppress(FileNotFoundError):  # only the kernel's cgroups have files for limits
        create(hierarchy, "next", Limits(), sandbox_processes=1)
    assert not folder.exists()


HEAP = "b = bytearray(150_000_000); b[::4096] = b'x' * len(b[::4096])"


@pytest.mark.parametrize(("outer_mb", "own_mb", "kills"), [(400, 60, 1), (60, 400, 0)], ids=["own", "above"])
def test_lack_of_memory_above_a_servers_cgroup_is_no_limit_of_it(outer_mb: int, own_mb: int, kills: int) -> None:
    """A machine, or a container around the harness, that runs out of memory; control: the cgroup's own limit."""
    hierarchy = require_cgroup()
    with contextlib.ExitStack() as stack:
        name = f"gymcp-{owner()}-above-{outer_mb}"
        outer = create(hierarchy, name, Limits(memory_mb=outer_mb), sandbox_processes=0)
        stack.callback(outer.remove)
        if outer.version == 2:
            (outer.memory / "cgroup.subtree_control").write_text("+memory +pids")
        below = replace(hierarchy, memory=outer.memory, pids=outer.pids, cpu=None)
        own = create(below, "own", Limits(memory_mb=own_mb), sandbox_processes=0)
        stack.callback(own.remove)
        join = 'for file; do echo 0 > "$file" || exit 9; done; exec "$PYTHON" -c "$HEAP"'
        env = {**os.environ, "PYTHON": sys.executable, "HEAP": HEAP}
        done = subprocess.run(["sh", "-c", join, "sh", *own.join_files], env=env, timeout=60, check=False)
        assert (done.returncode, own.oom_kills()) == (-signal.SIGKILL, kills)
