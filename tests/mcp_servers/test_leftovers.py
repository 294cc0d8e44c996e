"""Leftovers of a killed harness are found and removed; the files and processes of a living one are not."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ordinary_user import UID, as_ordinary_user

from gymcp.errors import SandboxUnavailable
from gymcp.mcp_servers.cleanup import cgroup_mountpoints, find_leftovers, remove_leftovers
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.process_owner import OWNER_VARIABLE, is_alive, owner, start_time
from gymcp.scratch import runtime_folder, scratch_folder

HARNESS = """
import asyncio, signal
from gymcp.process_owner import owner
from gymcp.mcp_servers.sandbox import Launch
from gymcp.mcp_servers.sandbox.unconfined import Unconfined

SERVER = '''
import os, signal
if os.fork() == 0:
    os.setsid()
os.write(1, b"ready\\\\n")
signal.pause()
'''

async def serve():
    async with Unconfined().start(Launch(argv=("python3", "-I", "-S", "-c", SERVER))) as process:
        await process.stdout.readline()
        print(owner(), process.pid, flush=True)
        await process.wait()

asyncio.run(serve())
"""


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@pytest.fixture
def harness(temporary: Path) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """(running harness with an unconfined server, its owner tag, the server's process)."""
    command = [sys.executable, "-c", HARNESS]
    env = {**os.environ, "TMPDIR": str(temporary)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        tag, _, pid = process.stdout.readline().strip().partition(" ")
        try:
            yield process, tag, int(pid)
        finally:
            process.kill()
            process.wait()
            remove_leftovers([leftover for leftover in find_leftovers() if leftover.owner == tag])


def cgroups_of(tag: str) -> list[Path]:
    return [
        Path(folder, child)
        for mountpoint in cgroup_mountpoints()
        for folder, children, _ in os.walk(mountpoint)
        for child in children
        if child.startswith(f"gymcp-{tag}-")
    ]


def test_owner_is_process_and_start_time() -> None:
    pid = os.getpid()
    assert owner() == f"{pid}-{start_time(pid)}"
    assert is_alive(owner())
    assert not is_alive(f"{pid}-1")  # the same id, another process
    assert not is_alive("no-owner")


def test_living_harness_is_left_alone(harness: tuple[subprocess.Popen[str], str, int]) -> None:
    _, tag, pid = harness
    assert [found for found in find_leftovers() if found.owner == tag] == []
    os.kill(pid, 0)


def test_leftovers_of_a_killed_harness_are_found_and_removed(harness: tuple[subprocess.Popen[str], str, int]) -> None:
    """A command of another test may have removed some processes and cgroups before: they are gone all the same."""
    process, tag, pid = harness
    processes = find_by_environment(OWNER_VARIABLE, tag)
    assert (pid in processes, len(processes)) == (True, 2)
    handles = [os.pidfd_open(one) for one in processes]
    groups = cgroups_of(tag)
    assert bool(groups) is Bubblewrap().uses_cgroup
    process.send_signal(signal.SIGKILL)
    process.wait()
    found = [leftover for leftover in find_leftovers() if leftover.owner == tag]
    names = {*map(str, processes), *map(str, groups), str(runtime_folder() / tag)}
    assert str(runtime_folder() / tag) in {leftover.name for leftover in found} <= names
    remove_leftovers(found)
    for handle in handles:
        assert select.select([handle], [], [], 60)[0]
        os.close(handle)
    assert not any(group.exists() for group in groups)
    assert list(runtime_folder().iterdir()) == []


def test_scratch_folder_is_private_and_removed_at_exit(temporary: Path) -> None:
    code = "from gymcp.scratch import scratch_folder as s\n(s() / 'a').touch(); print(s(), oct(s().stat().st_mode))"
    env = {**os.environ, "TMPDIR": str(temporary)}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    path, mode = out.split()
    assert (Path(path).parent, mode) == (runtime_folder(), "0o40700")
    assert stat.S_IMODE(runtime_folder().stat().st_mode) == 0o700
    assert not Path(path).exists()


def test_a_runtime_folder_of_someone_else_is_refused(temporary: Path) -> None:
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    runtime_folder().symlink_to(elsewhere)
    with pytest.raises(SandboxUnavailable, match="not a private folder"):
        scratch_folder()
    (elsewhere / "1-1").mkdir()
    assert [found for found in find_leftovers() if found.kind == "folder"] == []


def test_only_folders_named_after_dead_owners_are_leftovers(temporary: Path) -> None:
    root = runtime_folder()
    root.mkdir(mode=0o700)
    for name in ("1-1", owner(), "notes", "2-2x"):
        (root / name).mkdir()
    (root / "3-3").symlink_to(temporary)
    (root / "4-4").touch()
    found = [leftover for leftover in find_leftovers() if leftover.kind == "folder"]
    assert [leftover.name for leftover in found] == [str(root / "1-1")]
    remove_leftovers(found)
    assert sorted(path.name for path in root.iterdir()) == sorted([owner(), "notes", "2-2x", "3-3", "4-4"])


def test_a_folder_whose_lock_is_held_is_alive_elsewhere(temporary: Path) -> None:
    """A harness in another container has a process id that means nothing here."""
    root = runtime_folder()
    (root / "1-1").mkdir(parents=True)
    code = f"""
import fcntl, os
fcntl.flock(os.open({str(root / "1-1")!r}, os.O_RDONLY), fcntl.LOCK_SH)
print("held", flush=True)
input()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert [found for found in find_leftovers() if found.kind == "folder"] == []
        other.communicate("\n")
    assert [found.name for found in find_leftovers() if found.kind == "folder"] == [str(root / "1-1")]


INSTALL = """
import sys
from pathlib import Path
from gymcp.atomic import make_once

def fill(folder):
    (folder / "half").write_text("of it")
    print(folder, flush=True)
    sys.stdin.read()

make_once(Path(sys.argv[1]) / "servers" / "clock-1", fill)
"""


def test_leftovers_of_a_killed_install_are_removed_and_a_living_one_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GYMCP_HOME", str(tmp_path))
    command = [sys.executable, "-c", INSTALL, str(tmp_path)]
    with contextlib.ExitStack() as stack:
        killed, living = (
            stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
            for _ in range(2)
        )
        folders = [Path((process.stdout or sys.stdin).readline().strip()) for process in (killed, living)]
        killed.kill()
        killed.wait()
        found = [leftover for leftover in find_leftovers() if leftover.kind == "unfinished"]
        assert [leftover.name for leftover in found] == [str(folders[0])]
        remove_leftovers(found)
        assert [folder.exists() for folder in folders] == [False, True]
        living.communicate("")
    assert [path.name for path in (tmp_path / "servers").iterdir()] == ["clock-1"]


def test_an_installer_of_a_dead_harness_is_a_leftover() -> None:
    code = (
        "import sys, subprocess\n"
        "from gymcp.process_owner import environment_with_owner, owner\n"
        "child = subprocess.Popen(['sleep', '300'], env=environment_with_owner())\n"
        "print(owner(), child.pid, flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as one:
        assert one.stdout is not None
        tag, pid = one.stdout.readline().split()
        handle = os.pidfd_open(int(pid))
        one.kill()
        one.wait()
        found = [leftover for leftover in find_leftovers() if leftover.owner == tag]
        # none where a command of another test, which looks for leftovers when it starts, was quicker
        assert [(leftover.kind, leftover.name) for leftover in found] in ([], [("process", pid)])
        remove_leftovers(found)
        assert select.select([handle], [], [], 60)[0]
        os.close(handle)


CLOSED = """
import os, sys
from gymcp.mcp_servers.cleanup import Leftover, remove_leftovers
folder = os.path.join(sys.argv[1], "4194304-1")
os.makedirs(os.path.join(folder, "work", "work"))
open(os.path.join(folder, "work", "work", "file"), "w").close()
os.chmod(os.path.join(folder, "work", "work"), 0)
remove_leftovers([Leftover(kind="folder", name=folder, owner="4194304-1")])
print(os.path.exists(folder))
"""


def test_a_folder_with_an_overlays_closed_work_folder_goes_also_without_roots_rights(tmp_path: Path) -> None:
    command = [sys.executable, "-c", CLOSED, str(tmp_path)]
    if os.getuid() == 0:
        made = Path(tempfile.mkdtemp(prefix="gymcp-leftover-"))
        (made / "stage").mkdir()
        (made / "home").mkdir()
        made.chmod(0o755)
        os.chown(made / "home", UID, UID)
        command = as_ordinary_user([*command[:-1], str(made / "home")], made / "stage")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd="/")
    finally:
        if os.getuid() == 0:
            shutil.rmtree(made)
    assert (done.stdout, done.stderr) == ("False\n", "")


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a pid namespace by itself")
def test_a_process_of_another_pid_namespace_is_no_leftover() -> None:
    """The owner's process id stands for another process here, or for none."""
    words = ["unshare", "--pid", "--fork", "--kill-child", "env", f"{OWNER_VARIABLE}=4194304-1"]
    words += ["sh", "-c", "echo ready; read -r line"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as outer:
        assert outer.stdout is not None
        assert outer.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()
        found = [leftover.name for leftover in find_leftovers()]
        outer.kill()
    assert children != []
    assert not set(children) & set(found)
