"""Processes of a machine: those that make it busy, those that may make no namespaces, and the end of all of them."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ordinary_user import UID

TOKEN = "GYMCP_MACHINE"
"""Variable in the environment of everything that runs on a machine."""
END_S = 30
"""Seconds in which what runs on a machine must be dead once it is killed."""
CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
BUSY, BUSY_QUICK = 20, 3
"""Processes that compute on the one core of the busy machine: its load in a full run, and in the quick one of CI, which
is cheap and shows only that deadlines hold beside others."""
BUSY_CODE = "import signal, sys\nsignal.alarm(int(sys.argv[1]))\nwhile True: pass"


@contextmanager
def busy(count: int, seconds: int) -> Iterator[None]:
    """Processes that compute at the priority of the tests; each ends by itself after these seconds at the latest.

    They and what else this process starts share its last core, so that another machine can have the others.
    """
    os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])
    words = [sys.executable, "-c", BUSY_CODE, str(seconds)]
    started = [subprocess.Popen(words) for _ in range(count)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


def seal(argv: list[str]) -> None:
    """Runs the command in a user namespace in which no further one can be made."""
    libc = ctypes.CDLL(None, use_errno=True)
    entered, mapped = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        if libc.unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0:
            os._exit(9)
        os.write(entered[1], b"x")
        os.read(mapped[0], 1)
        Path("/proc/sys/user/max_user_namespaces").write_text("0")
        os.execvp(argv[0], argv)
    os.read(entered[0], 1)
    for name in ("uid_map", "gid_map"):
        Path(f"/proc/{child}/{name}").write_text(f"0 0 {UID + 1}")
    os.write(mapped[1], b"x")
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def end(token: str) -> None:
    """Kills what bears the token: servers without an environment end with those that started them.

    Until a look finds none, since a process may start another during the first; one that cannot be killed is left.
    """
    deadline = time.monotonic() + END_S
    while (pids := bearers(token)) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def bearers(token: str) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended
            if entry.name.isdigit() and f"{TOKEN}={token}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found
