"""No server can see, change or reach these, in any sandbox."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

import gymcp
from gymcp.errors import ConfigError, EnvInfraError
from gymcp.mcp_servers.sandbox import Launch, Mount, Sandbox
from gymcp.mcp_servers.sandbox.interpreter import harness_paths
from gymcp.mcp_servers.sandbox.seccomp import DENIED

Attack = Callable[..., Any]

ATTEMPT = """
import os, socket
def attempt(act):
    try:
        act()
    except OSError:
        print("refused")
    else:
        print("WORKED")
"""


def attempts(*acts: str) -> str:
    """A program that tries each expression and prints how it went."""
    return ATTEMPT + "\n".join(f"attempt(lambda: {act})" for act in acts)


def repeat_refusal(count: int) -> str:
    return "refused\n" * count


def test_no_network_interface_but_its_own_loopback(attack: Attack) -> None:
    assert attack("print(*[line.split(':')[0].strip() for line in list(open('/proc/net/dev'))[2:]])").out == "lo\n"


def test_root_is_read_only(attack: Attack) -> None:
    places = ["/", "/usr", "/usr/bin", "/usr/lib", "/etc", "/proc", "/bin", "/dev", str(Path(os.__file__).parent)]
    assert attack(attempts(*(f"open({place!r} + '/x', 'w')" for place in places))).out == repeat_refusal(len(places))


def test_environment_is_cleared(attack: Attack, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    code = (
        "import os\n"
        "for pid in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: print(open(f'/proc/{pid}/environ').read())\n"
        "    except OSError: pass\n"
        "print(*sorted(os.environ))"
    )
    out = attack(code, Launch(argv=(), env={"GIVEN": "1"})).out
    assert "sk-secret" not in out
    names = set(out.splitlines()[-1].split())
    assert {"GIVEN", "HOME", "LANG", "PATH", "TMPDIR"} <= names
    assert names <= {"GIVEN", "HOME", "LANG", "PATH", "TMPDIR", "PWD", "HOSTNAME"}


def test_harness_code_is_unreadable(attack: Attack) -> None:
    assert gymcp.__file__ is not None
    paths = [*map(str, harness_paths()), gymcp.__file__, sys.prefix, __file__]
    assert attack(attempts(*(f"os.stat({path!r})" for path in paths if path != "/usr"))).out == repeat_refusal(
        len(paths)
    )


def test_mounts_are_read_only_and_show_nothing_beside(attack: Attack, tmp_path: Path) -> None:
    for name in ("shown.py", "hidden.py"):
        (tmp_path / name).write_text(name)
    mounts = (Mount(source=tmp_path / "shown.py", target=PurePosixPath("/opt/server/shown.py")),)
    acts = ("open('/opt/server/shown.py', 'w')", "open('/opt/server/other', 'w')")
    code = attempts(*acts, "os.chmod('/opt/server/shown.py', 0o777)")
    code += "\nprint(os.listdir('/opt/server'), open('/opt/server/shown.py').read())"
    assert attack(code, Launch(argv=(), mounts=mounts)).out == repeat_refusal(3) + "['shown.py'] shown.py\n"


@pytest.mark.parametrize("target", ["relative", "/", "/opt/../etc"])
def test_mount_target_must_be_a_plain_path(attack: Attack, tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match="mount target"):
        attack("", Launch(argv=(), mounts=(Mount(source=tmp_path, target=PurePosixPath(target)),)))


def test_missing_mount_is_an_infrastructure_error(attack: Attack, tmp_path: Path) -> None:
    with pytest.raises(EnvInfraError, match="no such file"):
        attack("", Launch(argv=(), workspace=tmp_path / "absent"))


def test_capabilities_are_dropped_and_system_calls_filtered(attack: Attack) -> None:
    code = "print(*[l for l in open('/proc/self/status') if l.startswith(('Cap', 'NoNew', 'Seccomp:', 'Uid', 'Gid'))])"
    assert attack(code).out.split() == [
        *("Uid:", *["65534"] * 4, "Gid:", *["65534"] * 4),
        *("CapInh:", "0" * 16, "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "CapBnd:", "0" * 16, "CapAmb:", "0" * 16),
        *("NoNewPrivs:", "1", "Seccomp:", "2"),
    ]


def test_only_the_three_standard_files_are_open(attack: Attack) -> None:
    code = (
        "import os\n"
        "fds = os.open('/proc/self/fd', os.O_RDONLY)\n"
        "print(*sorted(int(n) for n in os.listdir(fds) if os.path.exists(f'/proc/self/fd/{n}') and int(n) != fds))"
    )
    assert attack(code).out == "0 1 2\n"


def test_device_nodes_cannot_be_made_and_none_is_dangerous(attack: Attack) -> None:
    code = attempts(
        "os.mknod('/tmp/disk', 0o60666, os.makedev(8, 0))",
        "os.mknod('/tmp/mem', 0o20666, os.makedev(1, 1))",
        "os.chmod('/dev/null', 0o600)",
    )
    usual = {"null", "zero", "full", "random", "urandom", "tty", "console", "ptmx", "pts", "shm", "mqueue"}
    code += f"\nprint(set(os.listdir('/dev')) - {usual | {'stdin', 'stdout', 'stderr', 'fd', 'core'}!r})"
    assert attack(code).out == repeat_refusal(3) + "set()\n"


SET_ID = """
import os, shutil, stat, subprocess
for folder in ("/workspace", "/tmp"):
    path = folder + "/id"
    shutil.copy("/usr/bin/id", path)
    for mode in (0o4755, 0o2755):
        try: os.chmod(path, mode)
        except OSError: os.chmod(path, 0o755)
        ids = subprocess.run([path], capture_output=True, text=True).stdout
        print(ids.count("65534"), "root" in ids)
for folder, children, files in os.walk("/"):
    if folder in ("/proc", "/sys"):
        children.clear()
        continue
    for name in files:
        found = os.lstat(os.path.join(folder, name))
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o6000 and found.st_uid == 0:
            print("set-id root:", folder, name)
"""


def test_set_id_gives_nothing(attack: Attack) -> None:
    ended = attack(SET_ID)
    assert {line.split()[1] for line in ended.out.splitlines()} == {"False"}, ended.err
    assert len(ended.out.splitlines()) == 4


def test_two_servers_share_nothing(attack: Attack) -> None:
    leave = "for folder in ('/tmp', '/dev/shm', '/workspace'): open(folder + '/left', 'w').write('x')"
    assert attack(leave).status == 0
    assert attack("import os; print(*map(os.listdir, ('/tmp', '/dev/shm', '/workspace')))").out == "[] [] []\n"


CALL_ALL = """
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
for name, number in NUMBERS.items():
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)
    if (result, ctypes.get_errno()) != (-1, 1): print(name, result, ctypes.get_errno())
print("end")
"""
UNKNOWN_TO_OLD_ENGINES = {"file_getattr", "file_setattr", "listmount", "open_tree_attr", "statmount"}
"""Newer than their libseccomp; all take a capability."""


def test_dangerous_system_calls_are_refused_by_the_kernel(attack: Attack, sandbox: Sandbox) -> None:
    """mount, ptrace, keyctl, bpf, unshare, setns, io_uring, process_vm_*, and the rest of the list."""
    left_out = UNKNOWN_TO_OLD_ENGINES if sandbox.name == "docker" else set()
    numbers = {name: number for name, number in DENIED[platform.machine()].items() if name not in left_out}
    assert attack(f"NUMBERS = {numbers}\n{CALL_ALL}").out == "end\n"
