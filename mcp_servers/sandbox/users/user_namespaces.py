"""Creates the user namespaces in which sandboxes are set up and run, and hands them over; root runs it as a script.

The one argument is the user and group id on the host that servers get. Three descriptors go out over the socket that
is standard output, in this order; the script ends, and the process that holds the descriptors keeps the namespaces:

* the set-up namespace: 1 inside is root of the host and 65534 inside is the server's id. The namespace belongs to the
  server's id, so a process with that id may enter it and has all capabilities over what the two ids own: it sets up a
  sandbox from sources below folders that only root may enter. Root is not 0 inside, or a process that changes its user
  would lose these capabilities.
* the namespace that servers run in: a child with the server's id only, in which no further namespace can be created;
* the same for `spawner.py`, in which further namespaces can be created.
"""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from collections.abc import Callable
from functools import partial

_CLONE_NEWUSER = 0x10000000
_PR_SET_DUMPABLE, _PR_SET_SECUREBITS, _NO_SETUID_FIXUP = 4, 28, 4
_INSIDE = 65534
_ROOT_INSIDE = 1

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    out = socket.socket(fileno=1)
    try:
        outside = int(sys.argv[1])
        _make_namespace(
            f"{_ROOT_INSIDE} 0 1\n{_INSIDE} {outside} 1",
            prepare=partial(_become, outside),
            work=partial(_in_set_up, out),
        )
    except OSError as error:
        socket.send_fds(out, [str(error).encode()], [])


def _in_set_up(out: socket.socket) -> None:
    _send_own(out)
    os.setresuid(_ROOT_INSIDE, _ROOT_INSIDE, _ROOT_INSIDE)
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))
    for limited in (True, False):
        _make_namespace(f"{_INSIDE} {_INSIDE} 1", prepare=lambda: None, work=partial(_in_run, out, limited))


def _in_run(out: socket.socket, limited: bool) -> None:
    if limited:
        with open("/proc/sys/user/max_user_namespaces", "w") as file:  # noqa: PTH123 - of the namespace that writes
            file.write("0")
    _send_own(out)


def _become(user: int) -> None:
    """Change to the user but keep the capabilities: some machines let only root create user namespaces."""
    os.setgroups([])
    _check(_libc.prctl(_PR_SET_SECUREBITS, _NO_SETUID_FIXUP, 0, 0, 0))
    os.setresgid(user, user, user)
    os.setresuid(user, user, user)
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))  # else the maps of this process cannot be opened


def _make_namespace(mapping: str, *, prepare: Callable[[], None], work: Callable[[], None]) -> None:
    """Do the work in a new user namespace whose maps this process writes from outside. Raises OSError."""
    ready, tell = os.pipe()
    go, let_go = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(let_go)
            prepare()
            _check(_libc.unshare(_CLONE_NEWUSER))
            os.write(tell, b".")
            if os.read(go, 1):
                work()
                status = 0
        except OSError as error:
            print(error, file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    os.close(tell)
    os.close(go)
    try:
        if os.read(ready, 1):
            for name in ("uid_map", "gid_map"):
                with open(f"/proc/{child}/{name}", "w") as file:  # noqa: PTH123
                    file.write(mapping)
            os.write(let_go, b".")
    finally:
        os.close(let_go)
        os.close(ready)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status != 0:
        raise OSError(f"a user namespace with the map {mapping!r} cannot be made")


def _send_own(out: socket.socket) -> None:
    fd = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    socket.send_fds(out, [b"ok"], [fd])
    os.close(fd)


def _check(result: int) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


if __name__ == "__main__":
    main()
