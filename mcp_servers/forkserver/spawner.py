"""Runs inside an outer wall, imports a server program once, and forks a process for every episode: stdlib only.

Every episode gets a *cell*: user, mount, PID, network, IPC, UTS and cgroup namespaces of its own, with fresh /proc,
/tmp, /dev/shm and /workspace. Two processes live there, number 1, which only waits, and number 2, which runs the
server. Both have no capability, cannot be traced, and run under the harness's seccomp filter.

The spawner itself has no capability either. All it needs is the right to make user namespaces, which the outer wall
leaves to it and the filter takes from the cells, and a /proc that nothing covers, because the kernel lets a user
namespace mount a new one only where it can see such a one. The outer wall shows it the host's at `PROC`; the first
thing it does is to mount its own there, in namespaces of its own, with nothing in it but processes: what else is in
/proc are the host's settings, which root's id alone could write. Cells cover that again.

A live server is forked in turn (`Wire.branch`): a new cell is made *inside* its own, since a process can enter only PID
namespaces below its own; the copy owns the new user namespace and so may enter it, which `setns` in the filter is left
for. Nothing else that a server can get hold of can be entered with it. An origin that turned hostile could reach a
cell that is being made for a copy in the millisecond before that is untraceable: a copy of itself, which it is anyway.
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
import sys
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

PROC = "/.proc"
_WIRE, _ORDERS, _LIFE = 3, 4, 5
"""The same in a server; the first one free follows."""
_MAX_FDS = 64
_MAX_MESSAGE = 65_536
_CHUNK = 262_144
_NEW_NS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_CELL = _NEW_NS | _NEW_UTS | _NEW_IPC | _NEW_USER | _NEW_PID | _NEW_NET
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
"""In the order in which a copy enters them: the first gives it the right to the others."""
_READ_ONLY, _NO_SUID, _NO_DEV, _NO_EXEC = 1, 2, 4, 8
_PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 4, 22, 24, 38, 47
_FILTER, _AMBIENT_CLEAR_ALL, _CAPABILITY_V3 = 2, 4, 0x20080522
_READ_SEARCH = 1 << 2
_SYS_CLONE = {"x86_64": 56, "aarch64": 220}
_SYS_CLOSE_RANGE, _LAST_FD = 436, 0x7FFFFFFF

_IMPORTED_LATE = ("enum", "re", "types", "typing")
"""By the runtime, at first use, which would be in every server anew."""
_OWN_FOLDERS = ("/tmp/", "/workspace/", "/dev/shm/")
_SYS_MOVE_MOUNT = 429
_AT_FDCWD, _F_EMPTY_PATH = -100, 4

_libc = ctypes.PyDLL(None, use_errno=True)  # PyDLL keeps the interpreter's lock: a clone must not let go of it


class _FilterProgram(ctypes.Structure):
    _fields_ = (("count", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


# ------------------------------------------------------------------------------------------------- the spawner's loop


class _Settings:
    """What all cells have in common."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.filter = base64.b64decode(order["filter"])
        self.is_script = "argv" in order
        """The program speaks over descriptors 0 and 1, like any server that is not gymcp's own."""
        self.user = os.getuid()
        self.disk_bytes = int(order["disk_bytes"])
        self.open_files = int(order["open_files"])
        """A server's limit. The spawner has more: descriptors that servers keep in flight count for all processes of
        the user, and each may send while there are fewer than its own limit."""
        self.kept = _READ_SEARCH if order["reads_all"] else 0
        """The capabilities of a server, over nothing but the files that its own user's namespace maps."""
        self.program: Any = None


def main() -> None:
    """Imports what the first message names, says so, then makes cells until the harness closes the socket.

    The one argument is the number of that socket.
    """
    control = socket.socket(fileno=int(sys.argv.pop()))
    user = os.getuid()
    if (spawner := _clone(_NEW_USER | _NEW_NS | _NEW_PID)) != 0:
        control.close()
        os._exit(os.waitstatus_to_exitcode(os.waitpid(spawner, 0)[1]))
    _map_user(user)
    _mount("proc", PROC, _NO_SUID | _NO_DEV | _NO_EXEC, "subset=pid")
    _drop_rights()
    order, _ = _receive(control)
    settings = _Settings(order)
    sys.path[:1] = order["path"]  # in place of this file's folder
    sys.argv[:] = order.get("argv", ["-c"])  # as where it is started
    if settings.is_script:
        _install(base64.b64decode(order["import_filter"]))
    if _imported(control, order["module"], partial(_import, order["module"], settings)):
        _serve(control, settings)


def _import(module: str, settings: _Settings) -> None:
    settings.program = importlib.import_module(module)
    getattr(settings.program, "preload", lambda: None)()
    for name in _IMPORTED_LATE:
        importlib.import_module(name)


def _imported(control: socket.socket, what: str, do_import: Callable[[], None]) -> bool:
    """Imports, and tells the harness whether the process can still be forked."""
    try:
        do_import()
    except SystemExit as error:
        _send(control, {"failed": str(error)})
        return False
    gc.collect()
    gc.freeze()  # what is shared is not touched by the children's collections, so it stays shared
    if _threads(PROC) != 1:
        _send(control, {"failed": f"{what} started a thread when it was imported, so it cannot be forked"})
        return False
    if _others_live(PROC):
        _send(control, {"failed": f"{what} leaves a process running when it is imported, so it cannot be forked"})
        return False
    if shared := _shared_maps(PROC):
        why = f"{what} shares memory ({', '.join(shared)}) when it is imported, so it cannot be forked"
        _send(control, {"failed": why})
        return False
    _send(control, {"ready": True})
    return True


def _serve(control: socket.socket, settings: _Settings) -> None:
    cells: dict[int, tuple[int, int]] = {}  # pidfd -> (process, the harness's number for it)
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for fd, _ in poll.poll():
            if fd in cells:
                poll.unregister(fd)
                os.close(fd)
                pid, number = cells.pop(fd)
                _send(control, {"ended": number, "status": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})
                continue
            order, fds = _receive(control)
            if not order:
                return
            if "learn" in order:
                learn = partial(settings.program.learn, order["learn"])
                if not _imported(control, sys.argv[0], learn):
                    return
            elif "inside" in order:
                _make_inside(order["inside"], fds, settings)
            else:
                pid = _clone(_CELL)
                if pid == 0:
                    _live(fds, settings, order)
                pidfd = os.pidfd_open(pid)
                cells[pidfd] = (pid, order["number"])
                poll.register(pidfd, select.POLLIN)
                _send(control, {"started": order["number"]}, [pidfd])
            for received in fds:
                os.close(received)


def _make_inside(count: int, fds: list[int], settings: _Settings) -> None:
    """Empty cells inside another, for copies of its server.

    fds: where they answer, the other's user and PID namespaces.
    """
    helper = os.fork()
    if helper == 0:
        _enter_and_make(count, fds, settings)
    os.waitpid(helper, 0)


# ------------------------------------------------------------------------------------------------------------ in a cell


def _or_exit(work: Callable[..., None]) -> Callable[..., NoReturn]:
    """A forked process does its work and ends: it must never return into the code of its parent."""

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
def _live(fds: list[int], settings: _Settings, order: dict[str, Any]) -> None:
    """Process 1 of a cell with a server.

    fds: its wire, standard error, orders, then cgroups to join, then the mount for /workspace where it has one. Of a
    script the first and the third are standard input and output.
    """
    tree = fds.pop() if "tree" in order else None
    wire, errors, orders, *cgroups = fds
    os.dup2(errors, 2)  # from here on the harness reads what goes wrong
    _furnish(settings, cgroups, tree)
    life, held = os.pipe()
    _cover_proc()
    null = os.open("/dev/null", os.O_RDWR)
    standard = [wire, orders, 2, null, null] if settings.is_script else [null, 2, 2, wire, orders]
    _arrange([*standard, held, life])
    _drop_rights(settings.kept)
    limit = min(settings.open_files, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    _install(settings.filter)
    server = os.fork()
    if server == 0:
        if settings.is_script:
            os.closerange(_WIRE, _LIFE + 2)
            settings.program.main(tell_imports="rehearse" in order)
        os.close(_LIFE + 1)
        _run(settings)
    _reap(_LIFE + 1, server)


@_or_exit
def _enter_and_make(count: int, fds: list[int], settings: _Settings) -> None:
    answer, user, pid = fds
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))  # the server in there must not find a process to take over
    _check(_libc.setns(user, _NEW_USER))
    _check(_libc.setns(pid, _NEW_PID))
    if os.fork():  # only a process that lives in the namespace can make one below it
        os.wait()
        return
    for _ in range(count):
        if _clone(_CELL) == 0:
            _wait_empty(answer, settings)


@_or_exit
def _wait_empty(answer: int, settings: _Settings) -> None:
    """Process 1 of a cell for a copy that is still to come; it stays in the spawner's cgroup."""
    _furnish(settings, [], None)
    handles = [os.open(f"{PROC}/self/ns/{name}", os.O_RDONLY) for name in NAMESPACES]
    life, held = os.pipe()
    _cover_proc()
    with socket.socket(fileno=answer) as sock:
        _send(sock, {"made": True}, [os.pidfd_open(os.getpid()), held, *handles])
    null = os.open("/dev/null", os.O_RDWR)
    _arrange([null, null, null, life])
    _drop_rights()
    _install(settings.filter)
    _reap(_WIRE, None)


@_or_exit
def _run(settings: _Settings) -> None:
    wire = Wire()
    sys.stdout = sys.stderr
    runtime = importlib.import_module("gymcp.mcp_servers.native.runtime")
    setattr(runtime, "claim_wire", lambda: (wire, wire))  # noqa: B010 - not the checked type
    try:
        settings.program.main()
    finally:
        sys.stderr.flush()


def _reap(life: int, server: int | None) -> NoReturn:
    """Process 1: ends with its server, or, where that was copied, with the last of its copies.

    Whoever runs the server holds the other end of `life`, and writes to it before it is copied.
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
            said = os.read(fd, 64)
            copied = copied or (fd == life and bool(said))
            if fd == life and not said:
                poll.unregister(life)
                ended = ended or server is None
        if ended and not copied:
            break  # what it wrote before its end has been read
        childless, statuses = _collect()
        if server in statuses:
            ended, code = True, statuses[server]
    os._exit(code if code >= 0 else 128 - code)


def _collect() -> tuple[bool, dict[int | None, int]]:
    """Whether no child is left, and the statuses of those that have ended."""
    statuses: dict[int | None, int] = {}
    try:
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return False, statuses
            statuses[pid] = os.waitstatus_to_exitcode(status)
    except ChildProcessError:
        return True, statuses


def _furnish(settings: _Settings, cgroups: list[int], tree: int | None) -> None:
    """Makes the new namespaces a place to live in. `PROC` is still open."""
    for group in cgroups:
        os.write(group, b"0")
    _check(_libc.unshare(_NEW_CGROUP))
    _map_user(settings.user)
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))
    os.setsid()
    quiet = _NO_SUID | _NO_DEV
    _mount("tmpfs", "/tmp", quiet, f"mode=1777,size={settings.disk_bytes}")
    if tree is None:
        _mount("tmpfs", "/workspace", quiet, f"mode=0755,size={settings.disk_bytes}")
    else:
        _check(_libc.syscall(_SYS_MOVE_MOUNT, tree, b"", _AT_FDCWD, b"/workspace", _F_EMPTY_PATH), "/workspace")
        os.close(tree)
    _mount("tmpfs", "/dev/shm", quiet, "mode=1777,size=64000000")
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


def _arrange(wanted: list[int]) -> None:
    """These descriptors become 0, 1, 2, ..., and no other stays open."""
    top = max(*wanted, len(wanted)) + 1
    for position, fd in enumerate(wanted):
        os.dup2(fd, top + position)
    for position in range(len(wanted)):
        os.dup2(top + position, position, inheritable=position < 3)
    if _libc.syscall(_SYS_CLOSE_RANGE, len(wanted), _LAST_FD, 0) < 0:  # before Linux 5.9
        for name in os.listdir("/proc/self/fd"):
            if int(name) >= len(wanted):
                _close(int(name))


def _drop_rights(kept: int = 0) -> None:
    last = 0
    while _libc.prctl(_PR_CAPBSET_DROP, last, 0, 0, 0) == 0:
        last += 1
    _check(_libc.prctl(_PR_CAP_AMBIENT, _AMBIENT_CLEAR_ALL, 0, 0, 0))
    header, sets = (ctypes.c_uint32 * 2)(_CAPABILITY_V3, 0), (ctypes.c_uint32 * 6)(kept, kept)
    _check(_libc.capset(header, sets))
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0))


def _install(program: bytes) -> None:
    text = ctypes.create_string_buffer(program, len(program))
    filter_program = _FilterProgram(len(program) // 8, ctypes.addressof(text))
    _check(_libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(filter_program), 0, 0))


# ------------------------------------------------------------------------------------------------------ a server's wire


class Wire:
    """Both ends of a server's wire, as `Server.serve` wants them; between two requests it obeys orders."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._orders: socket.socket | None = socket.socket(fileno=_ORDERS)
        self._copies: list[int] = []
        self._poll = select.poll()
        self._poll.register(_WIRE, select.POLLIN)
        self._poll.register(_ORDERS, select.POLLIN)

    def readline(self, limit: int) -> bytes:
        scanned = 0
        while (end := self._buffer.find(b"\n", scanned)) < 0 and len(self._buffer) < limit:
            scanned = len(self._buffer)
            for fd, _ in self._poll.poll():
                if fd == _ORDERS:
                    self._obey()
                    break  # this may be another process now
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

    def _obey(self) -> None:
        assert self._orders is not None
        order, fds = _receive(self._orders)
        if not order:
            self._poll.unregister(_ORDERS)
        elif "check" in order:
            _send(self._orders, {"refused": self._why_not()})
        elif "settle" in order:
            statuses = [os.waitpid(pid, 0)[1] for pid in self._copies]
            self._copies.clear()
            _send(self._orders, {"settled": statuses})
        else:
            self.branch(fds)
            for fd in fds:
                _close(fd)

    def _why_not(self) -> str:
        threads, opened = _threads("/proc"), {int(name) for name in os.listdir("/proc/self/fd")}
        opened = {fd for fd in opened if fd > _LIFE and os.path.exists(f"/proc/self/fd/{fd}")}
        if threads != 1:
            return f"it has {threads} threads; only a server with one can be copied"
        if shared := _shared_maps("/proc"):
            return f"it has memory that its copies would share ({', '.join(shared)}); unmap it between calls"
        if opened:
            return f"it holds {len(opened)} open files, which its copies would share; close them between calls"
        return "it is in the middle of a message" if self._buffer else ""

    def branch(self, fds: list[int]) -> None:
        """Goes on in two processes, with one state: the other in the cell that `fds` belongs to.

        fds: its wire, standard error, orders, hold on life; as many namespaces as `NAMESPACES`. The harness moves the
        copy to its cgroup.
        """
        os.write(_LIFE, b"b")  # its process 1 is to stay for the copies
        random = sys.modules.get("random")
        drawn = random.getstate() if random else None  # a fork seeds it anew
        helper = os.fork()
        if helper:
            self._copies.append(helper)
            return
        try:
            folders = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in ("/tmp", "/workspace")]
            first = 4
            for namespace in fds[first:]:
                _check(_libc.setns(namespace, 0))
            os.chdir("/workspace")
            _drop_rights()
            if os.fork():
                os._exit(0)
            os.setsid()
            if random:
                random.setstate(drawn)
            for folder, path in zip(folders, ("/tmp", "/workspace")):  # noqa: B905 (3.9 has no strict=)
                _copy_tree(folder, path)
            self._orders, self._copies = None, []
            wire, errors, orders, held = fds[:first]
            _arrange([0, errors, errors, wire, orders, held])
            self._orders = socket.socket(fileno=_ORDERS)
            fds.clear()
        except BaseException:
            traceback.print_exc()
            os._exit(1)


def _copy_tree(source: int, target: str) -> None:
    """Files, folders and links below a folder that is no longer visible, given by its descriptor."""
    for name in os.listdir(source):
        path, found = f"{target}/{name}", os.stat(name, dir_fd=source, follow_symlinks=False)
        kind = found.st_mode & 0o170000
        if kind == 0o120000:
            os.symlink(os.readlink(name, dir_fd=source), path)
        elif kind == 0o040000:
            os.mkdir(path)
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=source)
            _copy_tree(inner, path)
            os.close(inner)
            os.chmod(path, found.st_mode & 0o777)
        elif kind == 0o100000:
            with open(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=source), "rb") as read, open(path, "xb") as out:
                while chunk := read.read(_CHUNK):
                    out.write(chunk)
            os.chmod(path, found.st_mode & 0o777)


# ------------------------------------------------------------------------------------------------------- system calls


def _clone(namespaces: int) -> int:
    """fork() into new namespaces in one step: unshare() cannot be used twice, since PID namespaces nest."""
    number, flags = _SYS_CLONE[platform.machine()], ctypes.c_ulong(namespaces | signal.SIGCHLD)
    ctypes.pythonapi.PyOS_BeforeFork()
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


def _threads(proc: str) -> int:
    return len(os.listdir(f"{proc}/self/task"))


def _others_live(proc: str) -> bool:
    """True if its PID namespace has another process; one that has ended and was not waited for does no more."""
    for name in os.listdir(proc):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"{proc}/{name}/stat", "rb") as file:
                if file.read().rpartition(b") ")[2][:1] not in b"ZX":
                    return True
    return False


def _shared_maps(proc: str) -> list[str]:
    """Names of the maps that stay one memory after a fork: all that are shared and could be written.

    A file outside of the folders that are a server's own is on a read-only mount; a map of it that cannot be written
    will never be.
    """
    found = []
    with open(f"{proc}/self/maps", "rb") as file:
        for line in file:
            _, rights, _, _, _, *rest = line.split(None, 5)
            name = rest[0].decode(errors="replace").strip() if rest else "no file"
            is_fixed = b"w" not in rights and name.startswith("/") and not name.endswith(" (deleted)")
            if rights.endswith(b"s") and not (is_fixed and not name.startswith(_OWN_FOLDERS)):
                found.append(name)
    return found


def _receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """One message; an empty one where the other side is gone."""
    data, fds, _, _ = socket.recv_fds(sock, _MAX_MESSAGE, _MAX_FDS)
    return (json.loads(data) if data else {}), fds


def _send(sock: socket.socket, message: dict[str, Any], fds: list[int] | tuple[int, ...] = ()) -> None:
    socket.send_fds(sock, [json.dumps(message).encode()], list(fds))


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
