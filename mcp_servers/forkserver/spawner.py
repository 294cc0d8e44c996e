"""The fork server's process inside the sandbox: imports a server program once and forks it for every episode.

This file is mounted alone: it uses the standard library only. `client.py` is its counterpart in the harness, and takes
the messages and the lists of descriptors from here.

**Sandboxes.** The spawner runs in an outer sandbox. Every episode gets an inner sandbox: user, mount, PID, network,
IPC, UTS and cgroup namespaces of its own, with fresh /proc, /tmp, /dev/shm and /workspace. Two processes live there:
process 1, which only waits, and process 2, which runs the server. Both have no capability, cannot be traced, and run
under the harness's seccomp filter.

The spawner itself has no capability either. It needs two things. One is the right to make user namespaces, which the
outer sandbox leaves to it and the filter takes from inner sandboxes. The other is a /proc that no mount covers, because
the kernel lets a user namespace mount a new /proc only if it can see such a one. The outer sandbox shows it the host's
at `PROC`. First of all the spawner mounts its own there, in namespaces of its own, with nothing but processes in it:
the rest of /proc are the host's settings, which root's id alone could write. Inner sandboxes cover `PROC` again.

A live server is forked in turn (`Wire.branch`). A new inner sandbox is made *inside* the server's own, because a
process can enter only PID namespaces below its own. The copy owns the new user namespace and so may enter it; for that
the filter allows ``setns``. There is nothing else that a server could enter with it. A hostile server could reach the
sandbox for its copy in the millisecond before that becomes untraceable. That gains it nothing: the copy is itself.

**States of the spawner**, with the messages of the harness on the arrows and the spawner's answers below them::

              LoadProgram                   Preload (scripts only)
    started ----------------------> ready <------------------------+
       |      Loaded                  |     Loaded                 |
       |                              +----------------------------+
       | LoadFailed                   | LoadFailed, or the harness closes the socket
       +---------> ended <------------+

    while ready:  StartServer (ServerFds, cgroups, workspace)  ->  Started (pidfd), later Ended; or StartRefused
                  NestSandboxes (NestFds)                      ->  Nested (NestedFds, namespaces) from each sandbox

When the spawner ends, its servers end with it.

**Orders to a native server**, which it handles between two requests of its session::

    CheckCopyable                     ->  CopyChecked, with a reason if the server cannot be copied
    CopyServer (CopyFds, namespaces)  ->  no answer; from now on there are two servers
    FinishCopies                      ->  CopiesFinished, once the helpers of all copies have ended
    CopyFiles, to each copy           ->  FilesCopied; until then the original gets no request (if it has files)
"""

from __future__ import annotations

import base64
import contextlib
import ctypes
import gc
import importlib
import json
import os
import platform
import resource
import select
import signal
import socket
import stat
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple, NoReturn

PROC = "/.proc"
_WIRE, _ORDERS, _LIFE = 3, 4, 5
"""Descriptors of a native server: its MCP stream, its orders, and the pipe that tells process 1 that it lives."""
_MAX_FDS = 64
MAX_MESSAGE_BYTES = 65_536
_CHUNK = 262_144
_NEW_NS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_NEW_SANDBOX = _NEW_NS | _NEW_UTS | _NEW_IPC | _NEW_USER | _NEW_PID | _NEW_NET
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
"""Namespaces in the order in which a copy enters them: the first gives it the right to enter the others."""
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 22, 24, 38, 47
_FILTER, _AMBIENT_CLEAR_ALL, _CAPABILITY_V3 = 2, 4, 0x20080522
_READ_SEARCH = 1 << 2
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_CLOSE_RANGE, _LAST_FD = 436, 0x7FFFFFFF

_LATE_IMPORTS = ("enum", "re", "types", "typing")
"""Modules that the runtime imports at first use. They are imported ahead, or else every server would import them."""
_OWN_FOLDERS = {"/tmp": 0o1777, "/workspace": 0o755, "/dev/shm": 0o1777}
"""Folders in which a server can write, with their modes. A copy gets their files."""
_OWN_PREFIXES = tuple(f"{folder}/" for folder in _OWN_FOLDERS)
_OWN_ATTRIBUTES = ("user.", "system.posix_acl_")
"""Extended attributes that a server can set: its own, and access control lists."""
_SYS_MOVE_MOUNT = 429
_AT_FDCWD, _F_EMPTY_PATH = -100, 4

_libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter's lock: a clone must not let go of it


class _FilterProgram(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


# ---------------------------------------------------------------------------------------------------------- messages


class LoadProgram(NamedTuple):
    """First message to the spawner: the program to import, and the settings of all inner sandboxes."""

    path: list[str]
    """Folders that take the place of this file's folder in `sys.path`."""
    module: str
    argv: list[str] | None
    """Arguments of a script: a server that is not gymcp's own. None: a native server."""
    filter: str
    """Seccomp filter of servers, in base64."""
    import_filter: str
    """Seccomp filter of the spawner while it imports a script, in base64; empty for a native server."""
    disk_bytes: int
    open_files: int
    reads_all: bool
    """Servers may read files below their mounts whatever the mode of the files."""


class Loaded(NamedTuple):
    """The spawner has imported the modules and can be forked."""


class LoadFailed(NamedTuple):
    """The spawner cannot import the program, or cannot be forked after the import."""

    why: str


class Preload(NamedTuple):
    """Import more modules: those that a rehearsal of a script has imported late."""

    modules: list[str]


class StartServer(NamedTuple):
    """Start a server in a new inner sandbox.

    Descriptors: `ServerFds`, then files of cgroups to join, then the mount for /workspace if `has_workspace`.
    """

    number: int
    """The harness's number for the server, which the answers repeat."""
    rehearse: bool
    """Have a script report the modules that it imports, at its end."""
    has_workspace: bool


class Started(NamedTuple):
    """Process 1 of a server's sandbox has started. Descriptors: its pidfd."""

    number: int


class StartRefused(NamedTuple):
    """No server was started, because it would share something with the spawner."""

    number: int
    why: str


class Ended(NamedTuple):
    """Process 1 of a server's sandbox has ended, with the status of its server."""

    number: int
    status: int


class NestSandboxes(NamedTuple):
    """Make empty sandboxes inside that of a live server, for copies of it. Descriptors: `NestFds`."""

    sandboxes: int


class Nested(NamedTuple):
    """An empty sandbox waits for a copy. Descriptors: `NestedFds`, then handles of its `NAMESPACES`."""


class CheckCopyable(NamedTuple):
    """Order to a server: say whether it can be copied."""


class CopyChecked(NamedTuple):
    """The reason why the server cannot be copied; empty if it can."""

    refused: str
    has_files: bool = True
    """True if its copies must copy files."""


class CopyServer(NamedTuple):
    """Order to a server: fork, and have the child enter a nested sandbox.

    Descriptors: `CopyFds`, then handles of the sandbox's `NAMESPACES`.
    """


class FinishCopies(NamedTuple):
    """Order to a server: wait for the helpers that it has forked for its copies."""


class CopiesFinished(NamedTuple):
    """Wait statuses of the helpers; all are 0 if all copies were made."""

    statuses: list[int]


class CopyFiles(NamedTuple):
    """Order to a copy, its first one: copy the files of the server that it is a copy of."""


class FilesCopied(NamedTuple):
    """The reason why the files could not be copied; empty if they were."""

    refused: str


MESSAGES: dict[str, Callable[..., Any]] = {
    message.__name__: message
    for message in (
        *(LoadProgram, Loaded, LoadFailed, Preload, StartServer, Started, StartRefused, Ended, NestSandboxes, Nested),
        *(CheckCopyable, CopyChecked, CopyServer, FinishCopies, CopiesFinished, CopyFiles, FilesCopied),
    )
}
"""All messages by name, as they are written: a JSON object with the name as `message` beside the fields."""


class ServerFds(NamedTuple):
    """Descriptors of a new server."""

    wire: int
    """MCP stream; for a script its standard input."""
    errors: int
    """Standard error."""
    orders: int
    """Socket of orders; for a script its standard output."""


class NestFds(NamedTuple):
    """Descriptors with which the spawner makes nested sandboxes."""

    answers: int
    """Socket on which each sandbox sends `Nested`."""
    user: int
    pid: int
    """User and PID namespaces of the live server."""


class NestedFds(NamedTuple):
    """Descriptors of an empty sandbox."""

    pidfd: int
    life: int
    """End of a pipe that keeps process 1 waiting. A copy gets it, and process 1 ends when the copy has ended."""


class CopyFds(NamedTuple):
    """Descriptors of a copy of a native server."""

    wire: int
    errors: int
    orders: int
    life: int
    """See `NestedFds`."""


def encode_message(message: Any) -> bytes:
    return json.dumps({"message": type(message).__name__, **message._asdict()}).encode()


def decode_message(data: bytes) -> Any:
    """The message; None for no data, when the other side has closed. Raises ValueError for anything else."""
    if not data:
        return None
    fields = json.loads(data)
    try:
        return MESSAGES[fields.pop("message")](**fields)
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise ValueError(f"not a message: {error!r}") from error


# ------------------------------------------------------------------------------------------------- the spawner's loop


class _NativeProgram:
    """gymcp's own server: its session and its orders have sockets of their own."""

    module: Any = None

    def place_fds(self, fds: ServerFds, null: int) -> list[int]:
        """Descriptors that become a server's 0, 1, 2, ..."""
        return [null, 2, 2, fds.wire, fds.orders]

    def serve(self, message: StartServer) -> None:
        os.close(_LIFE + 1)
        wire = Wire()
        sys.stdout = sys.stderr
        runtime = importlib.import_module("gymcp.mcp_servers.native.runtime")
        setattr(runtime, "claim_wire", lambda: (wire, wire))  # noqa: B010 - not the checked type
        try:
            self.module.main()
        finally:
            sys.stderr.flush()


class _ScriptProgram:
    """Third-party program: it speaks over descriptors 0 and 1, and takes no orders."""

    module: Any = None

    def place_fds(self, fds: ServerFds, null: int) -> list[int]:
        """Descriptors that become a server's 0, 1, 2, ..."""
        return [fds.wire, fds.orders, 2, null, null]

    def serve(self, message: StartServer) -> None:
        os.closerange(_WIRE, _LIFE + 2)
        self.module.main(tell_imports=message.rehearse)


class _Settings:
    """Settings of all inner sandboxes, and the imported program."""

    def __init__(self, load: LoadProgram) -> None:
        self.filter = base64.b64decode(load.filter)
        self.user = os.getuid()
        self.disk_bytes = load.disk_bytes
        self.open_files = load.open_files
        """Limit of a server. The spawner has a higher one: descriptors that servers have in flight count for all
        processes of the user, and a process may send while they are fewer than its own limit."""
        self.capabilities = _READ_SEARCH if load.reads_all else 0
        """Capabilities of a server. They hold only for files that its user namespace maps."""
        self.program = _NativeProgram() if load.argv is None else _ScriptProgram()


def main() -> None:
    """Import the program that the first message names, then start servers until the harness closes the socket.

    The only argument is the descriptor of that socket.
    """
    control = socket.socket(fileno=int(sys.argv.pop()))
    user = os.getuid()
    if (spawner := _clone(_NEW_USER | _NEW_NS | _NEW_PID)) != 0:
        control.close()
        os._exit(os.waitstatus_to_exitcode(os.waitpid(spawner, 0)[1]))
    _map_user(user)
    _mount("proc", PROC, _NO_SUID | _NO_DEV | _NO_EXEC, "subset=pid")
    _drop_privileges()
    load, _ = _receive(control)
    settings = _Settings(load)
    sys.path[:1] = load.path  # in place of this file's folder
    sys.argv[:] = load.argv or ["-c"]  # as in a started server
    if load.import_filter:
        _install_filter(base64.b64decode(load.import_filter))
    if _import_and_report(control, load.module, partial(_import, load.module, settings)):
        _serve(control, settings)


def _import(module: str, settings: _Settings) -> None:
    settings.program.module = importlib.import_module(module)
    getattr(settings.program.module, "preload", lambda: None)()
    for name in _LATE_IMPORTS:
        importlib.import_module(name)


def _import_and_report(control: socket.socket, what: str, do_import: Callable[[], None]) -> bool:
    """Import, and tell the harness whether the process can still be forked."""
    try:
        do_import()
    except SystemExit as error:
        _send(control, LoadFailed(str(error)))
        return False
    gc.collect()
    gc.freeze()  # collections in the children then leave shared memory alone, so it stays shared
    if why := _why_not_forkable():
        _send(control, LoadFailed(f"{what} {why}, so it cannot be forked"))
        return False
    _send(control, Loaded())
    return True


def _why_not_forkable() -> str:
    """Reason why this process cannot be forked after an import; empty if there is none."""
    if _count_threads(PROC) != 1:
        return "started a thread when it was imported"
    if _has_other_processes(PROC):
        return "leaves a process running when it is imported"
    if shared := _list_shared_maps(PROC):
        return f"shares memory ({', '.join(shared)}) when it is imported"
    return ""


def _serve(control: socket.socket, settings: _Settings) -> None:
    servers: dict[int, tuple[int, int]] = {}  # pidfd -> (process 1, the harness's number for the server)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in servers:
                poll.unregister(fd)
                os.close(fd)
                pid, number = servers.pop(fd)
                _send(control, Ended(number, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])))
                continue
            message, fds = _receive(control)
            if message is None:
                return
            if isinstance(message, Preload):
                learn = partial(settings.program.module.learn, message.modules)
                if not _import_and_report(control, sys.argv[0], learn):
                    return
            elif isinstance(message, NestSandboxes):
                _nest_sandboxes(message.sandboxes, NestFds(*fds), settings)
            else:
                _start_server(control, message, fds, settings, servers, poll)
            for received in fds:
                os.close(received)


def _start_server(
    control: socket.socket,
    message: StartServer,
    fds: list[int],
    settings: _Settings,
    servers: dict[int, tuple[int, int]],
    poll: select.poll,
) -> None:
    """Start a server, and watch for its end. Memory that an import shares only when it is forked is found here."""
    try:
        pid = _clone(_NEW_SANDBOX, _refuse_shared_memory)
    except SystemExit as refusal:
        _send(control, StartRefused(message.number, str(refusal)))
        return
    if pid == 0:
        _run_sandbox(message, fds, settings)
    pidfd = os.pidfd_open(pid)
    servers[pidfd] = (pid, message.number)
    poll.register(pidfd, select.POLLIN)
    _send(control, Started(message.number), [pidfd])


def _refuse_shared_memory() -> None:
    if shared := _list_shared_maps(PROC):
        raise SystemExit(f"the program shares memory ({', '.join(shared)}) when it is forked")


def _nest_sandboxes(count: int, fds: NestFds, settings: _Settings) -> None:
    """Make empty sandboxes inside that of a live server, for its copies."""
    helper = os.fork()
    if helper == 0:
        _enter_and_nest(count, fds, settings)
    os.waitpid(helper, 0)


# -------------------------------------------------------------------------------------------------- in an inner sandbox


def _or_exit(work: Callable[..., None]) -> Callable[..., NoReturn]:
    """Make a function end its process: a forked process must never return into the code of its parent."""

    def run(*args: Any) -> NoReturn:
        status = 1
        try:
            work(*args)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)

    return run


@_or_exit
def _run_sandbox(message: StartServer, fds: list[int], settings: _Settings) -> None:
    """Process 1 of a sandbox with a server. `fds`: see `StartServer`."""
    workspace = fds.pop() if message.has_workspace else None
    server_fds, cgroups = ServerFds(*fds[:3]), fds[3:]
    os.dup2(server_fds.errors, 2)  # from here on the harness reads errors of this process
    _set_up_sandbox(settings, cgroups, workspace)
    life, held_life = os.pipe()
    _cover_proc()
    null = os.open("/dev/null", os.O_RDWR)
    _renumber_fds([*settings.program.place_fds(server_fds, null), held_life, life])
    _drop_privileges(settings.capabilities)
    limit = min(settings.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    _install_filter(settings.filter)
    server = os.fork()
    if server == 0:
        settings.program.serve(message)
        os._exit(0)
    _reap(_LIFE + 1, server)


@_or_exit
def _enter_and_nest(count: int, fds: NestFds, settings: _Settings) -> None:
    """Enter the namespaces of a live server and make sandboxes below them."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))  # the server in there must not find a process to take over
    _check(_libc.setns(fds.user, _NEW_USER))
    _check(_libc.setns(fds.pid, _NEW_PID))
    if os.fork():  # only a process that lives in the namespace can make one below it
        os.wait()
        return
    for _ in range(count):
        if _clone(_NEW_SANDBOX) == 0:
            _run_empty_sandbox(fds.answers, settings)


@_or_exit
def _run_empty_sandbox(answers: int, settings: _Settings) -> None:
    """Process 1 of a sandbox that waits for a copy. It stays in the spawner's cgroup."""
    _set_up_sandbox(settings, [], None)
    namespaces = [os.open(f"{PROC}/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    life, held_life = os.pipe()
    _cover_proc()
    with socket.socket(fileno=answers) as sock:
        _send(sock, Nested(), [*NestedFds(os.pidfd_open(os.getpid()), held_life), *namespaces])
    null = os.open("/dev/null", os.O_RDWR)
    _renumber_fds([null, null, null, life])
    _drop_privileges()
    _install_filter(settings.filter)
    _reap(_WIRE, None)


def _reap(life: int, server: int | None) -> NoReturn:
    """Process 1: wait for the server and, if it was copied, for the last of its copies, then exit.

    `life`: a pipe whose other end the server holds, and writes to before it is copied. `server`: None in a sandbox that
    waits for a copy.
    """
    for fd in range(life):
        os.close(fd)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(life, select.POLLIN)
    poll.register(woken, select.POLLIN)
    copied = ended = childless = False
    code = 0
    while not (ended and copied and childless):
        for fd, _ in poll.poll(0 if ended and not copied else None):
            data = os.read(fd, 64)
            copied = copied or (fd == life and bool(data))
            if fd == life and not data:
                poll.unregister(life)
                ended = ended or server is None
        if ended and not copied:
            break  # everything that it wrote to `life` has been read
        childless, statuses = _collect_exits()
        if server in statuses:
            ended, code = True, statuses[server]
    os._exit(code if code >= 0 else 128 - code)


def _collect_exits() -> tuple[bool, dict[int | None, int]]:
    """(True if no child is left, exit statuses of the children that have ended)."""
    statuses: dict[int | None, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return False, statuses
            statuses[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return True, statuses


def _set_up_sandbox(settings: _Settings, cgroups: list[int], workspace: int | None) -> None:
    """Join the cgroups, map the user and mount the file systems of new namespaces. `PROC` stays uncovered."""
    for group in cgroups:
        os.write(group, b"0")
    _check(_libc.unshare(_NEW_CGROUP))
    _map_user(settings.user)
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    os.setsid()
    quiet = _NO_SUID | _NO_DEV
    _mount("tmpfs", "/tmp", quiet, f"mode={_OWN_FOLDERS['/tmp']:o},size={settings.disk_bytes}")
    if workspace is None:
        _mount("tmpfs", "/workspace", quiet, f"mode={_OWN_FOLDERS['/workspace']:o},size={settings.disk_bytes}")
    else:
        _check(_libc.syscall(_SYS_MOVE_MOUNT, workspace, b"", _AT_FDCWD, b"/workspace", _F_EMPTY_PATH), "/workspace")
        os.close(workspace)
    _mount("tmpfs", "/dev/shm", quiet, f"mode={_OWN_FOLDERS['/dev/shm']:o},size=64000000")
    _mount("devpts", "/dev/pts", _NO_SUID | _NO_EXEC, "newinstance,ptmxmode=0666,mode=620")
    _mount("proc", "/proc", quiet | _NO_EXEC | _READ_ONLY, "subset=pid")
    os.chdir("/workspace")


def _map_user(user: int) -> None:
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))  # else these files are root's
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{user} {user} 1")):
        file = os.open(f"{PROC}/self/{name}", os.O_WRONLY)
        os.write(file, text.encode())
        os.close(file)


def _cover_proc() -> None:
    _mount("tmpfs", PROC, _READ_ONLY | _NO_EXEC | _NO_SUID | _NO_DEV, "mode=0555,size=4096")


def _renumber_fds(fds: list[int]) -> None:
    """Give these descriptors the numbers 0, 1, 2, ... and close all others."""
    top = max(*fds, len(fds)) + 1
    for position, fd in enumerate(fds):
        os.dup2(fd, top + position)
    for position in range(len(fds)):
        os.dup2(top + position, position, inheritable=position < 3)
    if _libc.syscall(_SYS_CLOSE_RANGE, len(fds), _LAST_FD, 0) < 0:  # before Linux 5.9
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= len(fds):
                _close(int(name))


def _drop_privileges(capabilities: int = 0) -> None:
    """Give up all capabilities but these, and become untraceable."""
    last = 0
    while _libc.prctl(_PR_CAPBSET_DROP, last, 0, 0, 0) == 0:
        last += 1
    _check(_libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0))
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_V3, 0), (ctypes.c_uint32 * 6)(capabilities, capabilities)
    _check(_libc.capset(header, sets))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def _install_filter(program: bytes) -> None:
    text = ctypes.create_string_buffer(program, len(program))
    filter_program = _FilterProgram(len(program) // 8, ctypes.addressof(text))
    _check(_libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(filter_program), 0, 0))


# ------------------------------------------------------------------------------------------------------ a server's wire


class Wire:
    """Both ends of a native server's stream, as `Server.serve` takes them. Between two requests it handles orders."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._orders: socket.socket | None = socket.socket(fileno=_ORDERS)
        self._helpers: list[int] = []
        """Child processes that started the copies."""
        self._has_files = True
        self._origin_folders: list[int] = []
        """Descriptors of the original's `_OWN_FOLDERS`, in a copy that has not copied them yet."""
        self._origin_cwd = "/workspace"
        self._poll = select.poll()
        self._poll.register(_WIRE, select.POLLIN)
        self._poll.register(_ORDERS, select.POLLIN)

    def readline(self, limit: int) -> bytes:
        scanned = 0
        while (end := self._buffer.find(b"\n", scanned)) < 0 and len(self._buffer) < limit:
            scanned = len(self._buffer)
            for fd, _ in self._poll.poll():
                if fd == _ORDERS:
                    self._handle_order()
                    break  # this may be the copy now
                chunk = _read(_WIRE)
                if not chunk:
                    return self._take(len(self._buffer))
                self._buffer += chunk
        return self._take(min(end + 1 or limit, limit))

    def _take(self, count: int) -> bytes:
        line = bytes(self._buffer[:count])
        del self._buffer[:count]
        return line

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(_WIRE, view) :]

    def flush(self) -> None:
        pass

    def _handle_order(self) -> None:
        assert self._orders is not None
        order, fds = _receive(self._orders)
        if order is None:
            self._poll.unregister(_ORDERS)
        elif isinstance(order, CheckCopyable):
            refused = self._why_not_copyable()
            self._has_files = not refused and _has_files()
            _send(self._orders, CopyChecked(refused, self._has_files))
        elif isinstance(order, FinishCopies):
            statuses = [os.waitpid(pid, 0)[1] for pid in self._helpers]
            self._helpers.clear()
            _send(self._orders, CopiesFinished(statuses))
        elif isinstance(order, CopyFiles):
            _send(self._orders, FilesCopied(self._copy_files()))
        else:
            self.branch(fds)
            for fd in fds:
                _close(fd)

    def _why_not_copyable(self) -> str:
        """Reason why the server cannot be copied; empty if there is none."""
        ctypes.pythonapi.PyOS_BeforeFork()  # handlers of `os.register_at_fork` may make what is looked for
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        threads, opened = _count_threads("/proc"), {int(name) for name in os.listdir("/proc/self/fd")}
        opened = {fd for fd in opened if fd > _LIFE and os.path.exists(f"/proc/self/fd/{fd}")}
        if threads != 1:
            return f"it has {threads} threads; only a server with one can be copied"
        if shared := _list_shared_maps("/proc"):
            return f"it has memory that its copies would share ({', '.join(shared)}); unmap it between calls"
        if closed := [folder for folder in _OWN_FOLDERS if not os.access(folder, os.R_OK | os.X_OK)]:
            return f"it has closed {closed[0]} to itself"
        if opened:
            return f"it holds {len(opened)} open files, which its copies would share; close them between calls"
        return "it is in the middle of a message" if self._buffer else ""

    def branch(self, fds: list[int]) -> None:
        """Fork the server: both processes go on with the same state, the child in the sandbox that `fds` belong to.

        `fds`: see `CopyServer`. The harness moves the copy to its cgroup.
        """
        os.write(_LIFE, b"b")  # tells process 1 to wait for the copies as well
        random = sys.modules.get("random")
        random_state = random.getstate() if random else None  # a fork seeds it anew
        helper = os.fork()
        if helper:
            self._helpers.append(helper)
            return
        try:
            own_folders = _OWN_FOLDERS if self._has_files else {}
            folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in own_folders]
            with contextlib.suppress(FileNotFoundError):  # it was deleted
                self._origin_cwd = os.getcwd()
            copy_fds, namespaces = CopyFds(*fds[:4]), fds[4:]
            for namespace in namespaces:
                _check(_libc.setns(namespace, 0))
            os.chdir("/workspace")
            _drop_privileges()
            if os.fork():
                os._exit(0)
            os.setsid()
            if random:
                random.setstate(random_state)
            self._orders, self._helpers = None, []
            own = [0, copy_fds.errors, copy_fds.errors, copy_fds.wire, copy_fds.orders, copy_fds.life]
            _renumber_fds([*own, *folders])
            self._orders = socket.socket(fileno=_ORDERS)
            self._origin_folders = list(range(len(own), len(own) + len(folders)))
            fds.clear()
        except BaseException:
            traceback.print_exc()
            os._exit(1)

    def _copy_files(self) -> str:
        """Copy the original's files; returns the reason why that failed, empty if it did not.

        The harness asks for it when the copy is in its own cgroup, which then counts these files.
        """
        try:
            for folder, path in zip(self._origin_folders, _OWN_FOLDERS):  # noqa: B905 (3.9 has no strict=)
                _copy_tree(folder, path, {}, _lists_newest_first(path))
                _copy_metadata(folder, path, os.fstat(folder))
            os.chdir(self._origin_cwd)
        except (OSError, RecursionError) as error:
            return f"its files could not be copied: {error}"
        finally:
            for folder in self._origin_folders:
                os.close(folder)
            self._origin_folders.clear()
        return ""


def _has_files() -> bool:
    """True if this server has files, or has changed its own folders or its working folder."""
    fresh = all(stat.S_IMODE(os.stat(path).st_mode) == mode for path, mode in _OWN_FOLDERS.items())
    try:
        return not fresh or os.getcwd() != "/workspace" or any(map(os.listdir, _OWN_FOLDERS))
    except FileNotFoundError:  # the working folder was deleted
        return True


def _lists_newest_first(folder: str) -> bool:
    """True if the file system lists the newest name first: a copy then makes the last name first, to list the same."""
    for name in ("first", "second"):
        os.mkdir(f"{folder}/{name}")
    names = os.listdir(folder)
    for name in names:
        os.rmdir(f"{folder}/{name}")
    return names[0] == "second"


def _copy_tree(source: int, target: str, copied: dict[tuple[int, int], str], backwards: bool) -> None:
    """Copy the content of a folder that is no longer visible, given by its descriptor.

    Everything is kept that a tool can see: modes, times, attributes, hard links, holes, special files, order of names.
    `copied`: path of the first copy of each file with several names, by device and inode.
    """
    names = os.listdir(source)
    for name in reversed(names) if backwards else names:
        path, status = f"{target}/{name}", os.stat(name, dir_fd=source, follow_symlinks=False)
        is_folder = stat.S_ISDIR(status.st_mode)
        has_names = status.st_nlink > 1 and not is_folder
        first = copied.setdefault((status.st_dev, status.st_ino), path) if has_names else path
        if first != path:
            os.link(first, path, follow_symlinks=False)
        elif stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), path)
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns), follow_symlinks=False)
        elif is_folder or stat.S_ISREG(status.st_mode):
            with _open_below(source, name, status.st_mode) as fd:
                if is_folder:
                    os.mkdir(path, 0o700)
                    _copy_tree(fd, path, copied, backwards)
                else:
                    _copy_file(fd, path, status.st_size)
                _copy_metadata(fd, path, status)
        else:
            os.mknod(path, status.st_mode, status.st_rdev)
            os.chmod(path, stat.S_IMODE(status.st_mode))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


@contextlib.contextmanager
def _open_below(folder: int, name: str, mode: int) -> Iterator[int]:
    """Descriptor of a file or folder of the server's own, also if its mode forbids to read it."""
    opened = partial(os.open, name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    needed = 0o500 if stat.S_ISDIR(mode) else 0o400
    is_closed = mode & needed != needed
    if is_closed:
        os.chmod(name, stat.S_IMODE(mode) | needed, dir_fd=folder)
    try:
        fd = opened()
        try:
            yield fd
        finally:
            os.close(fd)
    finally:
        if is_closed:
            os.chmod(name, stat.S_IMODE(mode), dir_fd=folder)


def _copy_file(source: int, path: str, size: int) -> None:
    target, end = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), 0
    try:
        while end < size:
            try:
                start = os.lseek(source, end, os.SEEK_DATA)
            except OSError:  # the rest is a hole
                break
            end = os.lseek(source, start, os.SEEK_HOLE)
            while start < end and (chunk := os.pread(source, min(_CHUNK, end - start), start)):
                start += os.pwrite(target, chunk, start)
        os.ftruncate(target, size)
    finally:
        os.close(target)


def _copy_metadata(source: int, path: str, status: os.stat_result) -> None:
    for name in os.listxattr(source):
        if name.startswith(_OWN_ATTRIBUTES):
            os.setxattr(path, name, os.getxattr(source, name))
    os.chmod(path, stat.S_IMODE(status.st_mode))
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


# ------------------------------------------------------------------------------------------------------- system calls


def _clone(namespaces: int, check: Callable[[], None] = lambda: None) -> int:
    """fork() into new namespaces in one step: unshare() cannot be used twice, since PID namespaces nest.

    `check` runs after the handlers of `os.register_at_fork`, and may raise.
    """
    number, flags = _SYS_CLONE[platform.machine()], ctypes.c_ulong(namespaces | signal.SIGCHLD)
    ctypes.pythonapi.PyOS_BeforeFork()
    try:
        check()
    except BaseException:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        raise
    pid = int(_libc.syscall(number, flags, None, None, None, None))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
    else:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
    return _check(pid)


def _mount(kind: str, target: str, flags: int, options: str) -> None:
    _check(_libc.mount(kind.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()), target)


def _check(result: int, about: str = "") -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), about)
    return result


def _count_threads(proc: str) -> int:
    return len(os.listdir(f"{proc}/self/task"))


def _has_other_processes(proc: str) -> bool:
    """True if the PID namespace has another running process. Zombies do not count."""
    for name in os.listdir(proc):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as file:
                if file.read().rpartition(b") ")[2][:1] not in b"ZX":
                    return True
    return False


def _list_shared_maps(proc: str) -> list[str]:
    """Names of the memory maps that a fork would share: those that are shared and could be written.

    A file outside of a server's own folders is on a read-only mount. A map of it that is not writable never becomes so.
    """
    names: list[str] = []
    with open(f"{proc}/self/maps", "rb") as file:
        text = file.read()
    if b"-s " not in text and b"xs " not in text:  # the ends of the rights of a shared map
        return names
    for line in text.splitlines():
        _, rights, _, _, _, *rest = line.split(None, 5)
        name = rest[0].decode(errors="replace").strip() if rest else "no file"
        is_fixed = b"w" not in rights and name.startswith("/") and not name.endswith(" (deleted)")
        if rights.endswith(b"s") and not (is_fixed and not name.startswith(_OWN_PREFIXES)):
            names.append(name)
    return names


def _receive(sock: socket.socket) -> tuple[Any, list[int]]:
    """(message, descriptors); the message is None if the other side has closed."""
    data, fds, _, _ = socket.recv_fds(sock, MAX_MESSAGE_BYTES, _MAX_FDS)
    return decode_message(data), fds


def _send(sock: socket.socket, message: Any, fds: list[int] | tuple[int, ...] = ()) -> None:
    socket.send_fds(sock, [encode_message(message)], list(fds))


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, _CHUNK)
    except ConnectionResetError:
        return b""


def _close(fd: int) -> None:
    with contextlib.suppress(OSError):
        os.close(fd)


if __name__ == "__main__":
    main()
