"""Changes a host of its own in every way that the guard looks for: run in mount, IPC, network and UTS namespaces.

Arguments: `furnish FOLDER` makes that host, `change FOLDER` changes it, `restore FOLDER` takes back what no namespace
ends (a cgroup, a process). Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import stat
import subprocess
import sys
import zlib
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)
DEVICES = {"null": (1, 3), "zero": (1, 5), "full": (1, 7), "random": (1, 8), "urandom": (1, 9), "tty": (5, 0)}
DEAD_OWNER = "4194304-1"
"""No process has that id."""
OTHER = 12345
"""Owner of what is planted: commands of gymcp that run beside this one remove what a dead owner of their user left."""
CGROUP_END, CHANGED_CGROUP_END = "-guard", "-guard-changed"
"""Ends of the names of the cgroup that is new, and of the one that was there before and is changed."""
CGROUP_SETTINGS = {"notify_on_release": "1", "cgroup.max.depth": "7"}
"""File of a cgroup (version 1, version 2) -> what is written there."""


def furnish(folder: Path) -> None:
    """/dev, /etc, /opt and /var/lib are this namespace's own from here on, and the home is in the folder."""
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "tmpfs", "-o", "mode=755", "none", "/opt")
    Path("/opt/program").write_text("of the host")
    Path("/opt/program").chmod(0o755)
    run("mount", "-t", "tmpfs", "none", "/var/lib")
    (folder / "home").mkdir()
    (folder / "etc").mkdir()
    for name in ("passwd", "group", "nsswitch.conf", "ld.so.cache"):
        if Path("/etc", name).exists():
            (folder / "etc" / name).write_bytes(Path("/etc", name).read_bytes())
    run("mount", "--bind", str(folder / "etc"), "/etc")
    made = folder / "dev"
    made.mkdir()
    run("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(made))
    for name, (major, minor) in DEVICES.items():
        os.mknod(made / name, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        (made / name).chmod(0o666)
    for name in ("shm", "pts", "mqueue"):
        (made / name).mkdir()
    run("mount", "--move", str(made), "/dev")
    run("mount", "-t", "tmpfs", "none", "/dev/shm")
    run("mount", "-t", "mqueue", "none", "/dev/mqueue")
    make_cgroups(folder, CHANGED_CGROUP_END)


def change(folder: Path) -> None:
    Path("/dev/zero").chmod(0o600)
    os.chown("/dev/null", 65534, 65534)
    Path("/dev/full").unlink()
    os.mknod("/dev/full", stat.S_IFCHR | 0o666, os.makedev(1, 5))
    os.mknod("/dev/extra", stat.S_IFCHR | 0o600, os.makedev(1, 1))
    (folder / "left").mkdir()
    run("mount", "-t", "tmpfs", "none", str(folder / "left"))
    run("mount", "-o", "remount,bind,ro", "/opt")
    run("mount", "-o", "remount,bind,rw", "/opt")
    run("mount", "--make-shared", "/dev/shm")
    Path("/etc/passwd").write_text("root::0:0::/:/bin/sh\n")
    Path("/opt/program").chmod(0o4755)
    Path("/opt/new").write_text("x")
    Path("/var/lib/new").write_text("x")
    (Path.home() / ".new").write_text("x")
    written = Path("/opt/program").stat().st_mtime_ns
    Path("/opt/program").write_text("of a server")
    os.utime("/opt/program", ns=(written, written))
    Path("/dev/shm/left").write_text("x")
    libc.shmget(0x6D6370, 4096, 0o1600)
    libc.semget(0x6D6370, 1, 0o1600)
    libc.msgget(0x6D6370, 0o1600)
    ctypes.CDLL(None).mq_open(b"/left", os.O_CREAT | os.O_RDWR, 0o600, None)
    Path("/proc/sys/net/ipv4/ip_default_ttl").write_text("63")
    Path("/proc/sys/kernel/domainname").write_text("changed")
    make_cgroups(folder, CGROUP_END)
    for setting in (group / name for group in cgroups(folder, CHANGED_CGROUP_END) for name in CGROUP_SETTINGS):
        if setting.exists():
            setting.write_text(CGROUP_SETTINGS[setting.name])
    left = {**os.environ, "GYMCP_OWNER": DEAD_OWNER}
    with (folder / "pid").open("w") as pid:
        words = ["setpriv", "--reuid", str(OTHER), "--clear-groups", "sleep", "120"]
        nowhere = subprocess.DEVNULL  # else a test that reads this one's output waits for its end
        process = subprocess.Popen(words, env=left, start_new_session=True, stdout=nowhere, stderr=nowhere)
        pid.write(str(process.pid))


def restore(folder: Path) -> None:
    for group in (*cgroups(folder, CGROUP_END), *cgroups(folder, CHANGED_CGROUP_END)):
        if group.is_dir():
            group.rmdir()
    if (folder / "pid").exists():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), signal.SIGKILL)


def make_cgroups(folder: Path, end: str) -> None:
    for group in cgroups(folder, end):
        group.mkdir()
        os.chown(group, OTHER, OTHER)


def cgroups(folder: Path, end: str) -> list[Path]:
    """The cgroup to plant, with a name of its own for each folder: another run on the host may plant one as well."""
    name = f"gymcp-{DEAD_OWNER}-{zlib.crc32(bytes(folder)):x}{end}"
    return [hierarchy / name for hierarchy in hierarchies()]


def hierarchies() -> list[Path]:
    """One: the first that is mounted and can be written."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        kind = fields[fields.index("-", 6) + 1]
        if kind in ("cgroup", "cgroup2") and os.access(fields[4], os.W_OK) and "ro" not in fields[5].split(","):
            return [Path(fields[4])]
    return []


def run(*words: str) -> None:
    subprocess.run(words, check=True)


def require_own_mounts() -> None:
    """End the program if its mounts are those of its oldest ancestor that can be asked: it would change the host.

    That is process 1, whose mounts some machines hide even from root.
    """
    own = oldest = Path("/proc/self/ns/mnt").readlink()
    pid = "self"
    while pid != "0":
        with contextlib.suppress(PermissionError):
            oldest = Path(f"/proc/{pid}/ns/mnt").readlink()
        status = Path(f"/proc/{pid}/status").read_text()
        pid = status.partition("\nPPid:")[2].split()[0]
    if own == oldest:
        sys.exit("plant.py: the mounts are those of process 1, so the host itself would be changed: unshare --mount")


if __name__ == "__main__":
    if sys.argv[1] != "restore":
        require_own_mounts()
    {"furnish": furnish, "change": change, "restore": restore}[sys.argv[1]](Path(sys.argv[2]))
