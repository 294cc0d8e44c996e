"""The default sandbox: a bubblewrap command line, a seccomp filter, limits.

Inside, the server is user 65534 in namespaces of its own, with no capability and no way to more, on the root that
`rootfs.py` describes.

Who it is outside, `identity.py` says. Under a root harness it is an id of its own: bwrap runs as that id, enters a user
namespace made for it, in which it may do all that setting up takes (also below /root, where pyenv, uv and the caches
are), and then another that has the server's id alone. Under an ordinary user, and under a root that may not do that,
the server is the harness's user, because the namespace that bwrap makes maps one id. What root's id alone then allows,
without capabilities, is closed one by one: /proc is read-only and its root-only files are masked, device nodes belong
to nobody, process 1 is not bwrap, whose executable would be writable, set-id bits are refused by the seccomp filter,
and cgroups or the watchdog count processes, since RLIMIT_NPROC does not hold root.

With ``network=True`` the server shares the host's network namespace: everything the host can reach, the host's own
services and its abstract unix sockets included.
"""

from __future__ import annotations

import fcntl
import functools
import os
import re
import shutil
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError, EnvInfraError, SandboxUnavailable
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.cgroup import usable_hierarchy
from gymcp.mcp_servers.sandbox.interpreter import Interpreter, interpreter
from gymcp.mcp_servers.sandbox.process import Command, Running, run
from gymcp.mcp_servers.sandbox.proctree import kernel_version
from gymcp.mcp_servers.sandbox.rootfs import NOBODY, root_arguments
from gymcp.mcp_servers.sandbox.spec import Launch, Mount, SandboxProcess
from gymcp.mcp_servers.sandbox.users.identity import CLOSE_NAMESPACES, SETPRIV, Identity, identity, warn_once
from gymcp.mcp_servers.sandbox.users.ownership import lent
from gymcp.process_owner import SERVER_ID
from gymcp.scratch import scratch_folder

OLDEST = (0, 8)
WORKSPACE = PurePosixPath("/workspace")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
SPAWNER_PROC = "/.proc"
_MEGABYTE = 1_000_000
_OWN_PROCESSES = 2
"""bwrap itself, and process 1 inside."""
_INSTALL = (
    "install it with: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora); "
    "or use --sandbox none for servers you trust"
)
_OWN_USER = ("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY))
"""A namespace that bwrap makes: outside, the server has the id of who runs bwrap."""
_NO_NESTING = ("--disable-userns", "--assert-userns-disabled")
_NAMESPACES = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--hostname", "sandbox"),
    *("--new-session", "--die-with-parent", "--as-pid-1", "--clearenv"),
)
_LOWEST_FD = 10
"""Below, a shell uses numbers of its own."""
_DROPS_BOUNDING_SET = (SETPRIV, "--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all", "--")
"""Entering a namespace gives the whole set back, and bwrap does not drop it there."""
_FIRST_INSIDE = CLOSE_NAMESPACES + 'exec 3<&0; "$@" <&3 3<&- & exec 0<&- 1>&- 2>&- 3<&-; wait $!'
"""Process 1: a shell that reaps orphans and ends with the server. bwrap's own process 1 would show as /proc/1/exe a
file of the host on a writable mount, and a server with root's id could change its mode."""
_FENCE = 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0"; '
"""Counts only what is inside since Linux 5.14; before that, everything the user runs."""


class Bubblewrap:
    """``use_cgroup=False`` leaves memory and processes to the watchdog even where cgroups could hold them."""

    name = "bwrap"
    confined = True

    def __init__(self, *, use_cgroup: bool = True, python: Interpreter | None = None) -> None:
        self._use_cgroup = use_cgroup
        self._python = python

    @property
    def uses_cgroup(self) -> bool:
        """Whether the kernel holds memory and process limits; else the watchdog does."""
        return self._use_cgroup and usable_hierarchy() is not None

    @functools.cached_property
    def python(self) -> Interpreter:
        return self._python or interpreter()

    def check(self) -> None:
        seccomp.program(network=False, hidden_memory=False)
        _check_version(_binary())
        own = identity()
        user = own.arguments if own is not None else (*_OWN_USER, *_NO_NESTING)
        probe = [_binary(), *user, *_prefix(self.python, False, scratch_folder()), "--remount-ro", "/", "true"]
        if own is not None:
            probe = own.opened([*own.entry(), *probe])
        result = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False)
        if result.returncode != 0:
            raise SandboxUnavailable(f"bwrap: cannot make a sandbox: {result.stderr.strip()}{_hint()}")

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        return self._run(launch)

    @asynccontextmanager
    async def _run(self, launch: Launch) -> AsyncIterator[Running]:
        own = identity()
        warn_once()
        arguments = self._arguments(launch)
        binary = _binary()
        info_read, info_write = map(_above_shell, os.pipe())
        program = _document(_filter(launch.network or launch.loopback, self.uses_cgroup))
        user = own.arguments if own is not None else _OWN_USER if launch.spawner else (*_OWN_USER, *_NO_NESTING)
        more = ("--bind", "/proc", SPAWNER_PROC) if launch.spawner else ("--seccomp", str(program))
        words = [*user, *more, "--info-fd", str(info_write), *arguments]
        document = _document(b"".join(os.fsencode(word) + b"\0" for word in words))
        command = Command(
            sandbox=self.name,
            argv=(*_entry(launch, own), binary, "--args", str(document), "--", *self._server(launch, own)),
            env={},
            cwd=Path("/"),
            limits=launch.limits,
            workspace=None if launch.read_only else launch.written or launch.workspace,
            use_cgroup=self._use_cgroup,
            spare_processes=_OWN_PROCESSES,
            fds=(info_write, program, document, *launch.fds),
            info_fd=info_read,
            namespaces=own.namespaces(spawner=launch.spawner) if own is not None else (),
        )
        async with lent(_lent(launch)), run(command) as process:
            yield process

    def _arguments(self, launch: Launch) -> list[str]:
        """Passed through a pipe: what is on a command line, any user of the host can read."""
        size = str(launch.limits.disk_mb * _MEGABYTE)
        arguments = list(_prefix(self.python, launch.network, scratch_folder()))
        arguments += ["--size", size, "--perms", "1777", "--tmpfs", "/tmp"]
        if launch.workspace is None:
            arguments += ["--size", size, "--perms", "0755", "--tmpfs", str(WORKSPACE)]
        else:
            mount = Mount(source=launch.workspace, target=WORKSPACE, writable=not launch.read_only)
            arguments += _bind(mount, lent=bool(launch.entry) or launch.workspace in _lent(launch))
        for mount in launch.mounts:
            arguments += _bind(mount, lent=mount.writable)
        for name, value in {**ENVIRONMENT, **launch.env}.items():
            arguments += ["--setenv", name, value]
        if launch.reads_all:
            arguments += ["--cap-add", "CAP_DAC_READ_SEARCH"]
        elif identity() is not None and not launch.spawner:
            arguments += ["--cap-add", "CAP_SETPCAP"]
        return [*arguments, "--remount-ro", "/", "--chdir", str(WORKSPACE)]

    def _server(self, launch: Launch, own: Identity | None) -> tuple[str, ...]:
        if not launch.argv:
            raise ConfigError("bwrap: an empty command; have e.g. python3 server.py")
        argv = (str(self.python.path), *launch.argv[1:]) if launch.argv[0] == "python3" else launch.argv
        fenced = not launch.spawner and not self.uses_cgroup and os.getuid() != 0 and kernel_version() >= (5, 14)
        script = _FENCE + _FIRST_INSIDE if fenced else _FIRST_INSIDE
        first = _DROPS_BOUNDING_SET if own is not None and not launch.reads_all and not launch.spawner else ()
        return (*first, "/bin/sh", "-c", script, str(launch.limits.processes + 1), *argv)  # 1: the shell


@functools.cache
def _prefix(python: Interpreter, network: bool, scratch: Path) -> tuple[str, ...]:
    """Computed once: it lists folders. ``scratch`` is in it, and is another one after a fork."""
    share = [] if network else ["--unshare-net"]
    return (*_NAMESPACES, *share, *root_arguments(python, scratch, network=network))


@functools.cache
def _filter(network: bool, hidden_memory: bool) -> bytes:
    return seccomp.program(network=network, hidden_memory=hidden_memory)


@functools.cache
def _binary() -> str:
    if (path := shutil.which("bwrap")) is None:
        raise SandboxUnavailable(f"bwrap: not found in PATH: {_INSTALL}")
    return path


def _check_version(binary: str) -> None:
    answer = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    match = re.search(r"(\d+)\.(\d+)", answer)
    if match is None or (int(match[1]), int(match[2])) < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise SandboxUnavailable(
            f"bwrap: {answer.strip() or 'no version'} is too old: size limits need {oldest}; {_INSTALL}"
        )


def opening(settings: Path = Path("/proc/sys")) -> str | None:
    """The command that lets users of this machine make namespaces; None where no setting forbids it."""
    switches = {
        "kernel/unprivileged_userns_clone": ("0", "1"),
        "user/max_user_namespaces": ("0", "10000"),
        "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    }
    for name, (closed, opened) in switches.items():
        path = settings / name
        if path.exists() and path.read_text().strip() == closed:
            return f"sysctl -w {name.replace('/', '.')}={opened}"
    return None


def _hint() -> str:
    if (command := opening()) is not None:
        return f": user namespaces are off: {command}; or use --sandbox docker"
    return "; or use --sandbox docker, or --sandbox none for servers you trust"


def _bind(mount: Mount, *, lent: bool = False) -> list[str]:
    """`lent`: it is the server's own while it runs."""
    if not mount.target.is_absolute() or ".." in mount.target.parts or mount.target == PurePosixPath("/"):
        raise ConfigError(f"bwrap: mount target {mount.target}: must be an absolute path below / without '..'")
    try:
        found = mount.source.stat()
    except OSError as error:
        raise EnvInfraError(f"bwrap: mount {mount.target}: {mount.source}: no such file or folder") from error
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(found.st_mode) else 0)
    if identity() is not None and found.st_uid != SERVER_ID and found.st_mode & needed != needed and not lent:
        raise ConfigError(
            f"bwrap: mount {mount.target}: cannot be read by user {SERVER_ID}, whom servers run as on the host: "
            f"chmod -R o+rX {mount.source}"
        )
    return ["--bind" if mount.writable else "--ro-bind", str(mount.source.absolute()), str(mount.target)]


def _entry(launch: Launch, own: Identity | None) -> tuple[str, ...]:
    return launch.entry or (own.entry() if own is not None else ())


def _lent(launch: Launch) -> list[Path]:
    """Folders of the host that the server must own; those with an entry belong to servers already."""
    paths = [mount.source for mount in launch.mounts if mount.writable]
    if launch.workspace is not None and not launch.entry and (launch.reads_all or not launch.read_only):
        paths.append(launch.workspace)
    return paths


def _above_shell(fd: int) -> int:
    if fd >= _LOWEST_FD:
        return fd
    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    os.close(fd)
    return higher


def _document(content: bytes) -> int:
    """A file descriptor to read it from, without a file."""
    fd = _above_shell(os.memfd_create("gymcp"))
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
