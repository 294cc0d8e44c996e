"""The guard names every kind of change to a host, and is silent about what others do there."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from equipment import lacking
from guard import TOKEN
from plant import CGROUP_END, CHANGED_CGROUP_END, hierarchies

pytestmark = pytest.mark.xdist_group("host_guard")  # two at once would see each other's changes

HERE = Path(__file__).parent
GUARD, PLANT = HERE / "guard.py", HERE / "plant.py"

PLANTED = {
    "mode of a device": "devices: /dev/zero: crw-rw-rw- 0:0 1:5 -> crw------- 0:0 1:5",
    "owner of a device": "devices: /dev/null: crw-rw-rw- 0:0 1:3 -> crw-rw-rw- 65534:65534 1:3",
    "device behind a name": "devices: /dev/full: crw-rw-rw- 0:0 1:7 -> crw-r--r-- 0:0 1:5",
    "new device": "devices: /dev/extra: absent -> crw------- 0:0 1:1",
    "mount": "/left: absent -> tmpfs / none",
    "propagation of a mount": "mounts: /dev/shm: ",
    "cgroup": f"{CGROUP_END}: absent -> drwxr-xr-x 12345:12345",
    "setting of a cgroup": f"{CHANGED_CGROUP_END}/",
    "process": "absent -> its owner 4194304-1 is dead: sleep 120",
    "shared memory": "ipc: shm ",
    "semaphores": "ipc: sem ",
    "message queue": "ipc: msg ",
    "posix queue": "ipc: /dev/mqueue/left: absent -> ",
    "shared file": "ipc: /dev/shm/left: absent -> -rw-r--r-- 0:0",
    "setting of the network": "settings: net/ipv4/ip_default_ttl: 64 -> 63",
    "setting of the kernel": "settings: kernel/domainname: ",
    "content of a file, its time set back": "files: /opt/program: ",
    "file of the system": "files: /etc/passwd: ",
    "new file": "files: /opt/new: absent -> ",
    "new file in the home": "/home/.new: absent -> ",
    "new file of a service": "files: /var/lib/new: absent -> ",
}
"""Kind of change -> what the guard's line about it holds."""


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Two comparisons in namespaces of their own, before anything is changed and after."""
    if os.getuid() != 0:
        lacking("root", "only root can make a host to be changed")
    folder = tmp_path_factory.mktemp("host")
    python, guard, plant, at = map(shlex.quote, (sys.executable, str(GUARD), str(PLANT), str(folder)))
    guard += "".join(f" --except {shlex.quote(str(path))}" for path in Path("/usr").iterdir())  # seconds each
    script = (
        f"{python} {plant} furnish {at} && {python} {guard} before {at}/before.json || exit 9\n"
        f"{python} {guard} --settle 1 after {at}/before.json; echo unchanged: $?\n"
        f"{python} {plant} change {at} || exit 9\n"
        f"{python} {guard} --settle 1 after {at}/before.json; echo changed: $?\n"
    )
    # a guard may be around this run
    env = {name: value for name, value in os.environ.items() if name != TOKEN} | {"HOME": str(folder / "home")}
    try:
        done = subprocess.run(
            ["unshare", "--mount", "--ipc", "--net", "--uts", "sh", "-c", script],
            env=env,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        subprocess.run([sys.executable, PLANT, "restore", folder], check=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("kind", list(PLANTED))
def test_change_is_named(kind: str, said: str) -> None:
    if "cgroup" in kind and not hierarchies():
        pytest.skip("no writable cgroup")
    changed = said.partition("unchanged: ")[2]
    assert PLANTED[kind] in changed, said
    assert changed.endswith("changed: 1\n")


def test_nothing_is_said_of_a_host_that_is_as_it_was(said: str) -> None:
    assert said.startswith("unchanged: 0\n")


def around(*command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, str(GUARD), "--only", "processes", "--only", "devices", "--settle", "1", "around", "--"]
    return subprocess.run([*words, *command], capture_output=True, text=True, timeout=120, check=False)


def test_a_process_that_outlives_its_command_is_named_even_without_its_environment(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    done = around("sh", "-c", f"setsid env -i sleep 600 >&- 2>&- & echo $! >{shlex.quote(str(pid))}")
    os.kill(int(pid.read_text()), signal.SIGKILL)  # it is still there, however long the guard took
    assert done.returncode == 1, done.stdout
    assert done.stdout.endswith("absent -> started by this run: sleep 600\n")


def test_a_process_that_becomes_another_program_meanwhile_is_named(tmp_path: Path) -> None:
    pid, goes_on = tmp_path / "pid", "sh -c 'sleep 0.7; exec sleep 600'"
    done = around("sh", "-c", f"setsid {goes_on} >&- 2>&- & echo $! >{shlex.quote(str(pid))}")
    os.kill(int(pid.read_text()), signal.SIGKILL)
    assert "absent -> started by this run: sleep 600\n" in done.stdout


def test_the_commands_own_failure_is_kept() -> None:
    done = around("sh", "-c", "exit 7")
    assert (done.returncode, done.stdout) == (7, "the host is as it was: devices, processes\n")


@pytest.mark.parametrize("verb", ["furnish", "change"])
def test_nothing_is_planted_among_the_mounts_of_process_1(tmp_path: Path, verb: str) -> None:
    """Tried with a process 1 of its own, below whose mounts there is nothing to be changed."""
    if os.getuid() != 0:
        lacking("root", "only root can make a host to be changed")
    folders = ("/dev", "/opt", "/etc", "/var/lib", "/sys/fs/cgroup")
    covers = "".join(f"mount -t tmpfs none {folder} && " for folder in folders)
    own = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--ipc", "--net", "--uts")
    done = subprocess.run(
        [*own, "sh", "-c", f'{covers} exec "$@"', "sh", sys.executable, str(PLANT), verb, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = "plant.py: the mounts are those of process 1, so the host itself would be changed: unshare --mount\n"
    assert (done.returncode, done.stderr) == (1, said)
    assert list(tmp_path.iterdir()) == []
