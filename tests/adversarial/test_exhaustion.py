"""Limits on everything that a server can use up, in any sandbox; nothing of a server stays."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sandbox_runs import DAEMON, python

from gymcp.mcp_servers.sandbox import Launch, Limits, Sandbox
from gymcp.process_owner import owner

Attack = Callable[..., Any]
TIMEOUT_S = 60.0

limited = pytest.mark.parametrize("sandbox", ["bwrap", "bwrap-watchdog", "docker"], indirect=True, scope="session")
"""With limits that the kernel holds for a cgroup, and with those that the watchdog holds."""
every_kind = pytest.mark.parametrize(
    "sandbox", ["bwrap", "bwrap-watchdog", "none", "none-watchdog", "docker"], indirect=True, scope="session"
)

FORK_BOMB = """
import os
while True:
    try: os.fork()
    except OSError: pass
"""
FILL_WORKSPACE = """
import signal
for number in range(100):
    with open(f"/workspace/{number}", "wb") as file: file.write(bytes(1_000_000))
signal.pause()
"""


@limited
def test_fork_bomb_ends(attack: Attack) -> None:
    ended = attack(FORK_BOMB, Launch(argv=(), limits=Limits(processes=20, cpu_s=0.5)))
    assert ended.limit.startswith(("cpu:", "processes:"))


@limited
def test_workspace_growth_is_limited(attack: Attack, tmp_path: Path) -> None:
    (tmp_path / "seed").write_bytes(bytes(30_000_000))  # earlier content does not count
    ended = attack(FILL_WORKSPACE, Launch(argv=(), workspace=tmp_path, limits=Limits(disk_mb=20)))
    assert (ended.limit, ended.status) == ("disk: the workspace grew by more than 20 MB", 137)


def test_one_file_is_no_longer_than_the_disk_limit(attack: Attack, tmp_path: Path) -> None:
    code = "with open('/workspace/a', 'wb') as file: file.truncate(30_000_000)"
    assert "File too large" in attack(code, Launch(argv=(), workspace=tmp_path, limits=Limits(disk_mb=20))).err


def test_stderr_flood_neither_blocks_nor_fills_memory(attack: Attack) -> None:
    code = "import os\nfor _ in range(2000): os.write(2, b'x' * 65536)\nos.write(2, b'the end')\nprint('done')"
    ended = attack(code, Launch(argv=(), limits=Limits(stderr_bytes=1000)))
    assert (ended.out, ended.err) == ("done\n", "x" * 993 + "the end")


def test_a_large_answer_arrives_whole(attack: Attack) -> None:
    assert len(attack("print('x' * 20_000_000)").out) == 20_000_001


def test_stdout_flood_meets_the_line_cap(sandbox: Sandbox) -> None:
    async def flood() -> None:
        launch = python("import os\nwhile True: os.write(1, b'x' * 65536)", limits=Limits(line_bytes=10_000))
        async with asyncio.timeout(TIMEOUT_S), sandbox.start(launch) as process:
            await process.stdout.readline()

    with pytest.raises(ValueError, match="limit"):
        asyncio.run(flood())


def test_no_core_dumps_and_few_open_files(attack: Attack) -> None:
    code = "import resource as r; print(r.getrlimit(r.RLIMIT_CORE), r.getrlimit(r.RLIMIT_NOFILE))"
    assert attack(code, Launch(argv=(), limits=Limits(open_files=99))).out == "(0, 0) (99, 99)\n"


def own_cgroups() -> set[str]:
    names = {name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names}  # others come and go meanwhile
    return {name for name in names if name.startswith(f"gymcp-{owner()}-")}


@every_kind
@pytest.mark.parametrize("how", ["leave", "raise", "cancel"])
def test_nothing_is_left_of_a_server(sandbox: Sandbox, how: str, attack: Attack, tmp_path: Path) -> None:
    attack("")  # files that are opened once and kept, such as the pipe to the reaper of containers
    groups_before = own_cgroups()  # groups of another test may still hold a process
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)

    async def serve() -> None:
        async with sandbox.start(python(DAEMON, workspace=tmp_path)) as process:
            assert await process.stdout.readline() == b"ready\n", process.stderr_tail()
            if how == "raise":
                raise RuntimeError("of the caller")
            if how == "cancel":
                asyncio.current_task().cancel()  # type: ignore[union-attr]
                await asyncio.sleep(0)

    open_before = len(list(Path("/proc/self/fd").iterdir()))
    expected = {"raise": RuntimeError, "cancel": asyncio.CancelledError}.get(how)
    with pytest.raises(expected) if expected else contextlib.nullcontext():
        asyncio.run(serve())
    assert os.read(alive, 10) == b"x"
    assert os.read(alive, 10) == b""  # end of file: the daemon is gone already, not soon
    os.close(alive)
    kept = 1 if sandbox.name == "docker" else 0  # a connection to the engine
    assert len(list(Path("/proc/self/fd").iterdir())) <= open_before - 1 + kept
    assert own_cgroups() <= groups_before


HARNESS = """
import asyncio, sys
from pathlib import Path
from gymcp.mcp_servers.sandbox import Launch, get_sandbox

async def serve():
    launch = Launch(argv=("python3", "-I", "-S", "-c", sys.argv[3]), workspace=Path(sys.argv[2]))
    async with get_sandbox(sys.argv[1]).start(launch) as process:
        print((await process.stdout.readline()).decode(), end="", flush=True)
        await process.wait()

asyncio.run(serve())
"""


def test_a_killed_harness_takes_its_servers_along(sandbox: Sandbox, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "alive")
    alive = os.open(tmp_path / "alive", os.O_RDONLY | os.O_NONBLOCK)
    command = [sys.executable, "-c", HARNESS, sandbox.name, str(tmp_path), DAEMON]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as harness:
        assert harness.stdout is not None
        ready = harness.stdout.readline()
        harness.send_signal(signal.SIGKILL)
    assert ready == b"ready\n"
    assert os.read(alive, 1) == b"x"
    readable, _, _ = select.select([alive], [], [], TIMEOUT_S)
    assert readable
    assert os.read(alive, 1) == b""
    os.close(alive)
