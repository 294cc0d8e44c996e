"""Compares the host before and after a run: `guard.py before FILE`, `after FILE`, or `around -- COMMAND...`.

Prints each difference in one line, `SECTION: NAME: BEFORE -> AFTER`, and exits 1 if there is one. Standard library
only.

The guard leaves out changes that other programs make: mounts, cgroups and network interfaces of container engines and
of systemd, processes without the run's marks, IPC objects of other users, counters of the kernel, and the content of
files that belong to running services. A difference counts only if it is still there after `SETTLE_S` seconds, in which
runs beside this one end what they hold for a moment.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pwd
import re
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

Section = dict[str, str]
"""Name -> what it is like, in words."""
Snapshot = dict[str, Section]

CHECKOUT = Path(__file__).resolve().parents[2]
TOKEN = "GYMCP_GUARD"
"""Variable in the environment of everything that `around` starts."""
OWNER = re.compile(rb"(?:^|\0)GYMCP_OWNER=(\d+)-(\d+)(?:\0|$)")
SETTLE_S = 30.0
ABSENT = "absent"
NOBODY = 65534

ENGINES = (
    "/var/lib/docker",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/run/docker",
    "/run/containerd",
    "/run/netns",
)
OTHERS_MOUNTS = (*ENGINES, "/run/user", "/run/credentials", "/media", "/snap", "/run/snapd", "/proc/sys/fs/binfmt_misc")
OTHERS_CGROUPS = re.compile(
    r"docker|containerd|kubepods.*|machine|buildkit|init|.*\.(slice|scope|service|mount|socket|swap)"
)
COUNTERS = re.compile(
    r"fs/(dentry-state|inode-nr|inode-state|file-nr|aio-nr|quota/.*|mqueue/.*)"
    r"|kernel/(ns_last_pid|pty/nr|random/.*|perf_event_max_sample_rate|perf_cpu_time_max_percent|usermodehelper/.*)"
    r"|kernel/sched_domain/.*|kernel/(max_lock_depth|spl/.*)"
    r"|net/netfilter/nf_conntrack.*|net/nf_conntrack_max|net/bridge/.*"
    r"|net/(ipv4|ipv6)/(conf|neigh)/(veth|br-|docker|cali|cni|flannel|virbr|vnet|tap|tun|wg).*|net/mpls/conf/(veth|br-).*"
    r"|vm/(stat_refresh|min_free_kbytes|drop_caches|compact_memory)"
)
"""Settings of /proc/sys that change by themselves, or with an engine's interfaces, or act when they are read."""
CONTROLS = re.compile(
    r"notify_on_release|release_agent|cgroup\.(subtree_control|type|freeze|clone_children|max\..*)|.*(\.max|limit_in_bytes|_quota_us)"
)
"""Files of a cgroup that hold settings, not counters."""
SERVICES = {
    *(
        "docker",
        "containerd",
        "containers",
        "apt",
        "dpkg",
        "systemd",
        "dhcp",
        "dhcpcd",
        "NetworkManager",
        "logrotate",
        "private",
    ),
    *(
        "snapd",
        "chrony",
        "ntp",
        "polkit-1",
        "upower",
        "plocate",
        "mlocate",
        "man-db",
        "PackageKit",
        "update-notifier",
        "lxc",
    ),
    *(
        "mysql",
        "postgresql",
        "redis",
        "libvirt",
        "cloud",
        "amazon",
        "waagent",
        "gdm3",
        "AccountsService",
        "ubuntu-release-upgrader",
    ),
}
"""Folders of /var/lib whose owners write there when they like."""
HOME_OTHERS = re.compile(
    r".*history|\.viminfo|\.lesshst|\.wget-hsts|\.[xX]authority|\.xsession-errors.*|\.sudo_as_admin_successful"
    r"|.*\.json(\.backup)?|\.cache|\.config|\.local|\.npm|\.nv|\.pki|\.triton"
)
"""Names in a home that shells and editors write, and folders in which libraries keep settings and caches."""
CHECKOUT_OWN = {".venv", ".git", "runs", "site", "__pycache__", "build", "dist", ".hypothesis", ".coverage"}
CACHE = re.compile(r"__pycache__|\..*_cache|.*\.egg-info")
LOGINS = re.compile(r"tty(S|USB)?\d+|vcs[au]?\d*")
"""Terminals of the machine: who logs in there owns them."""
SHOWN = 200
PASSING = {"mounts", "cgroups", "ipc"}
"""Sections in which others come and go all the time."""


def look(only: list[str], excepted: list[Path]) -> Snapshot:
    return {name: section(excepted) for name, section in SECTIONS.items() if not only or name in only}


def devices(_: list[Path]) -> Section:
    """Owner, mode and number of every node of /dev; terminals, shared memory and queues are looked at elsewhere."""
    left_out = {Path("/dev") / name for name in ("pts", "shm", "mqueue", "hugepages")}
    found = {}
    for path, status in walk(Path("/dev"), left_out):
        if LOGINS.fullmatch(path.name):
            continue
        number = f" {os.major(status.st_rdev)}:{os.minor(status.st_rdev)}" if status.st_rdev else ""
        found[str(path)] = describe_owner(status) + number
    for name in left_out:
        if name.is_dir():
            found[str(name)] = describe_owner(name.lstat())
    return found


def mounts(_: list[Path]) -> Section:
    found: Section = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        dash = fields.index("-", 6)
        point = fields[4]
        if any(point == other or point.startswith(other + "/") for other in OTHERS_MOUNTS) or lives_beside(point):
            continue
        tags = ",".join(sorted(field.partition(":")[0] for field in fields[6:dash]))
        said = " ".join([fields[dash + 1], fields[3], fields[dash + 2], fields[5], fields[dash + 3], tags or "private"])
        found[point] = f"{found[point]} under {said}" if point in found else said
    return found


def cgroups(_: list[Path]) -> Section:
    """Folders of every hierarchy with what is set in them; engines', systemd's and living runs' are left out.

    Under systemd and in containers the run's own cgroup, in which gymcp makes others, is below such a name: the way to
    it is taken.
    """
    found: Section = {}
    own = {line.split(":", 2)[2].strip() for line in Path("/proc/self/cgroup").read_text().splitlines()}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-", 6) + 1] not in ("cgroup", "cgroup2"):
            continue
        for folder, children, names in os.walk(fields[4]):
            at = fields[3].rstrip("/") + folder.removeprefix(fields[4].rstrip("/")).rstrip("/")
            children[:] = [
                name
                for name in children
                if leads_to(f"{at}/{name}", own) or not (OTHERS_CGROUPS.fullmatch(name) or lives_beside(name))
            ]
            found[folder] = describe_owner(os.lstat(folder))
            for name in names:
                if CONTROLS.fullmatch(name):
                    found[f"{folder}/{name}"] = content(Path(folder, name))
    return found


def leads_to(cgroup: str, own: set[str]) -> bool:
    return any(path == cgroup or path.startswith(cgroup + "/") for path in own)


def is_new_and_others(name: str) -> bool:
    """True for a cgroup that was not there before, is not named as gymcp's are, and holds no process of this run.

    Session managers and engines make such at any time.
    """
    if re.search(r"/gymcp-[^/]*$", name):
        return False
    procs = content(Path(name, "cgroup.procs")).split()
    return not any(is_mine(int(pid)) for pid in procs if pid.isdigit())


def processes(_: list[Path]) -> Section:
    """Processes that this run has started, and those that bear the mark of an owner that is dead."""
    above = set(ancestors(os.getpid()))
    found = {}
    for entry in os.scandir("/proc"):
        pid = int(entry.name) if entry.name.isdigit() else 0
        if pid == 0 or pid in above:
            continue
        try:
            owner = OWNER.search(Path(entry.path, "environ").read_bytes())
            here = Path(entry.path, "ns", "pid").readlink() == Path("/proc/self/ns/pid").readlink()
            command = Path(entry.path, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        if is_mine(pid):
            why = "started by this run"
        elif owner and here and read_start(int(owner[1])) != owner[2].decode():
            why = f"its owner {owner[1].decode()}-{owner[2].decode()} is dead"
        else:
            continue
        found[f"{pid}-{read_start(pid)}"] = f"{why}: {command[:SHOWN]}"
    return found


def ipc(_: list[Path]) -> Section:
    """Shared memory, semaphores and queues of the run's user, of nobody, and of ids that are no user's here."""
    found: Section = {}
    for kind in ("shm", "msg", "sem"):
        header, *lines = content(Path(f"/proc/sysvipc/{kind}"), 1_000_000).splitlines() or [""]
        for line in lines:
            by_name = dict(zip(header.split(), line.split(), strict=False))
            number = by_name[header.split()[1]]
            creator = int(by_name.get("cpid", 0))
            if ours(int(by_name["uid"])) and not (creator and read_start(creator) and not is_mine(creator)):
                found[f"{kind} {number}"] = f"key {by_name['key']} mode {by_name['perms']} user {by_name['uid']}"
    for folder in ("/dev/shm", "/dev/mqueue"):
        found |= objects(Path(folder))
    if not Path("/dev/mqueue").is_mount():
        found |= unseen_queues()
    return found


def objects(folder: Path) -> Section:
    try:
        status = {path: path.lstat() for path in folder.iterdir()}
    except OSError:
        return {}
    return {str(path): describe_owner(at) for path, at in status.items() if ours(at.st_uid)}


def unseen_queues() -> Section:
    """POSIX queues if no mqueue is mounted: listed in a mount namespace of a child process, which takes root."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        found: Section = {}
        try:
            libc = ctypes.CDLL(None, use_errno=True)
            folder = tempfile.gettempdir().encode()
            private = libc.unshare(0x20000) == 0 and libc.mount(None, b"/", None, 0x4C000, None) == 0
            if private and libc.mount(b"none", folder, b"mqueue", 0, None) == 0:
                found = {f"queue {Path(name).name}": said for name, said in objects(Path(os.fsdecode(folder))).items()}
        finally:
            os.write(writer, json.dumps(found).encode())
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said: Section = json.loads(answer.read() or b"{}")
    os.waitpid(child, 0)
    return said


def settings(_: list[Path]) -> Section:
    root = Path("/proc/sys")
    found = {}
    for path, status in walk(root, {root / "fs" / "binfmt_misc"}):
        name = str(path.relative_to(root))
        if stat.S_ISREG(status.st_mode) and status.st_mode & 0o444 and not COUNTERS.fullmatch(name):
            found[name] = content(path)
    return found


def files(excepted: list[Path]) -> Section:
    """Programs and settings of the machine with their times; /var/lib and the home without what others write there."""
    found = {}
    apart = {CHECKOUT, *excepted, *caches()}
    for root in ("/etc", "/usr", "/opt", "/srv", "/boot"):
        for path, status in walk(Path(root), {Path("/etc/resolv.conf"), Path("/etc/mtab")} | apart):
            found[str(path)] = describe_file(status)
    for path, status in walk(Path("/var/lib"), {Path("/var/lib") / name for name in SERVICES} | apart):
        found[str(path)] = describe_owner(status)
    for root in ("/", "/var", "/var/spool/cron"):
        for path in list_folder(Path(root)):
            found[str(path)] = describe_owner(path.lstat())
    home = Path.home()
    for path in list_folder(home):
        if not HOME_OTHERS.fullmatch(path.name):
            status = path.lstat()
            found[str(path)] = describe_file(status) if stat.S_ISREG(status.st_mode) else describe_owner(status)
    for path, status in walk(home / ".ssh", {home / ".ssh" / "known_hosts", home / ".ssh" / "known_hosts.old"}):
        found[str(path)] = describe_file(status)
    for path, status in walk(CHECKOUT, {CHECKOUT / name for name in CHECKOUT_OWN} | set(excepted) | caches()):
        found[str(path)] = describe_file(status)
    return found


def caches() -> set[Path]:
    """Folders of the cache and of temporary files that the environment names; without it they are not looked at."""
    names = ("GYMCP_HOME", "XDG_CACHE_HOME", "PIP_CACHE_DIR", "UV_CACHE_DIR", "TMPDIR")
    return {Path(os.environ[name]).absolute() for name in names if os.environ.get(name)}


SECTIONS: dict[str, Callable[[list[Path]], Section]] = {
    "devices": devices,
    "mounts": mounts,
    "cgroups": cgroups,
    "processes": processes,
    "ipc": ipc,
    "settings": settings,
    "files": files,
}


def walk(root: Path, left_out: set[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below on the same mount, caches of Python and of tools left out."""
    closed = {str(path) for path in left_out}
    waiting = [str(root)]
    while waiting:
        folder = waiting.pop()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if entry.path in closed or CACHE.fullmatch(entry.name):
                        continue
                    status = entry.stat(follow_symlinks=False)
                    yield Path(entry.path), status
                    if stat.S_ISDIR(status.st_mode):
                        waiting.append(entry.path)
        except OSError:  # it is gone, or closed to this user
            continue


def list_folder(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def describe_owner(status: os.stat_result) -> str:
    return f"{stat.filemode(status.st_mode)} {status.st_uid}:{status.st_gid}"


def describe_file(status: os.stat_result) -> str:
    """A folder's own times change with what is in it, which is looked at by name."""
    if stat.S_ISDIR(status.st_mode):
        return describe_owner(status)
    return (
        f"{describe_owner(status)} {status.st_size} bytes, written {status.st_mtime_ns}, changed {status.st_ctime_ns}"
    )


def content(path: Path, most: int = 4000) -> str:
    try:
        return path.read_bytes()[:most].decode(errors="replace").strip()
    except OSError as error:
        return f"unreadable: {error.strerror}"


def ours(uid: int) -> bool:
    """True for ids that servers of this run may have had."""
    if uid in (os.getuid(), NOBODY):
        return True
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return True
    return False


def read_start(pid: int) -> str:
    """Clock ticks from boot to its start; empty for a process that is gone."""
    try:
        line = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return ""
    return line[line.rindex(b")") + 2 :].split()[19].decode()


def ancestors(pid: int) -> Iterator[int]:
    """The process and those above it."""
    while pid > 0:
        yield pid
        try:
            line = Path(f"/proc/{pid}/stat").read_bytes()
        except OSError:
            return
        pid = int(line[line.rindex(b")") + 2 :].split()[1])


def is_mine(pid: int) -> bool:
    """True for what the guard's command has started: it bears the token, or has the guard above it."""
    token = os.environ.get(TOKEN)
    if token is None or pid in ancestors(os.getpid()):
        return False
    if os.getpid() in ancestors(pid):
        return True
    try:
        return f"{TOKEN}={token}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def lives_beside(path: str) -> bool:
    """True for a mount or a cgroup named after a living owner that is not of this run."""
    if not (owner := re.search(r"gymcp-(?:\d+/)?(\d+)-(\d+)(?:[-/]|$)", path)):
        return False
    return read_start(int(owner[1])) == owner[2] and not is_mine(int(owner[1]))


def steady(only: list[str], excepted: list[Path]) -> Snapshot:
    """The host as it is now, less what runs beside this one hold for a moment."""
    first = look(only, excepted)
    time.sleep(1)
    for name in first.keys() & PASSING:
        again = SECTIONS[name](excepted)
        first[name] = {key: value for key, value in first[name].items() if key in again}
    return first


def differences(before: Snapshot, after: Snapshot) -> list[str]:
    lines = []
    for section in before.keys() & after.keys():
        old, new = before[section], after[section]
        lines += [
            f"{section}: {name}: {old.get(name, ABSENT)} -> {new.get(name, ABSENT)}"
            for name in sorted(old.keys() | new.keys())
            if old.get(name) != new.get(name) and not is_others(section, name, old, new)
        ]
    return sorted(lines)


def is_others(section: str, name: str, old: Section, new: Section) -> bool:
    """True for what comes or goes without this run: processes, IPC objects and cgroups end with their owners."""
    if section in ("processes", "ipc"):
        return name not in new
    if section != "cgroups" or (name in old and name in new):
        return False
    return name not in new or is_new_and_others(name if Path(name).is_dir() else str(Path(name).parent))


def identify(line: str) -> str:
    """The part of a difference by which it is found again: a process's number and start, since it may run another
    program by then; the whole line of any other difference."""
    return line.partition(" -> ")[0] if line.startswith("processes: ") else line


def lasting(before: Snapshot, only: list[str], excepted: list[Path], settle_s: float) -> list[str]:
    """Differences that are still the same a while later."""
    found = differences(before, look(only, excepted))
    deadline = time.monotonic() + settle_s
    while found and time.monotonic() < deadline:
        time.sleep(min(2.0, settle_s))
        again = differences(before, look(sorted({line.partition(":")[0] for line in found}), excepted))
        earlier = {identify(line) for line in found}
        found = [line for line in again if identify(line) in earlier]
    return found


def report(found: list[str]) -> int:
    for line in found[:SHOWN]:
        print("".join(character if character.isprintable() else "?" for character in f"the host was changed: {line}"))
    if len(found) > SHOWN:
        print(f"the host was changed: {len(found) - SHOWN} more differences")
    return 1 if found else 0


def around(command: list[str], only: list[str], excepted: list[Path], settle_s: float) -> int:
    """Exit status of the command, or 1 if it ended well and left the host changed."""
    os.environ[TOKEN] = secrets.token_hex(8)
    before = steady(only, excepted)
    ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # orphans become children of this process, so that none is lost to sight
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_IGN)  # the command gets it as well, and ends first
    status = subprocess.run(command, check=False, preexec_fn=_hears_interrupts).returncode
    found = lasting(before, only, excepted, settle_s)
    changed = report(found)
    if not changed:
        print(f"the host is as it was: {', '.join(before)}")
    return status or changed


def _hears_interrupts() -> None:
    for number in (signal.SIGINT, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", default=[], choices=SECTIONS, help="compare this section alone")
    parser.add_argument(
        "--except", action="append", default=[], type=Path, dest="excepted", help="a path that may change"
    )
    parser.add_argument("--settle", type=float, default=SETTLE_S, help="seconds that a difference must last")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb in ("before", "after"):
        verbs.add_parser(verb).add_argument("file", type=Path)
    verbs.add_parser("around").add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    excepted = [path.absolute() for path in args.excepted]
    if args.verb == "before":
        args.file.write_text(json.dumps(steady(args.only, excepted)))
    elif args.verb == "after":
        sys.exit(report(lasting(json.loads(args.file.read_text()), args.only, excepted, args.settle)))
    else:
        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        sys.exit(around(command, args.only, excepted, args.settle))


if __name__ == "__main__":
    main()
