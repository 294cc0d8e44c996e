"""The user on the host that a confined server is: under a root harness one of its own, else the harness's.

A root harness makes user namespaces once (`user_namespaces.py`) and has bubblewrap enter them instead of making some
for every start. A server is then user `SERVER_ID` on the host, whom nothing belongs to but the workspaces that it is
given: no file of root's, no device node and no setting of the kernel is its own.

An ordinary user cannot give servers another id; they are that user, without capabilities, in what is mounted. The same
holds for a root that may not make these namespaces (`why_none` says why): then what root's id alone allows is closed
one by one, as `rootfs.py` says, and an import in a template is the weakest place.
"""

from __future__ import annotations

import functools
import logging
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gymcp.process_owner import SERVER_ID

SET_UP_FD, RUN_FD = 8, 9
"""Under which bubblewrap gets the namespaces: a shell can open and close numbers of one digit only."""
OPEN_NAMESPACES = f'exec {SET_UP_FD}<"$1" {RUN_FD}<"$2" || exit 125; shift 2; '
"""Shell: the first two arguments are `Identity.namespaces`."""
CLOSE_NAMESPACES = f"exec {SET_UP_FD}<&- {RUN_FD}<&-; "
SETPRIV = "/usr/bin/setpriv"
_INSIDE = "65534"
_NSENTER = "/usr/bin/nsenter"
_TIMEOUT_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Descriptors of user namespaces, open as long as this process lives."""

    set_up: int
    run: int
    run_spawner: int

    def namespaces(self, *, spawner: bool = False) -> tuple[str, str]:
        """Paths of those to set up in and to run in."""
        folder = f"/proc/{os.getpid()}/fd"
        return f"{folder}/{self.set_up}", f"{folder}/{self.run_spawner if spawner else self.run}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options of bubblewrap that replace a new user namespace."""
        return ("--userns", str(SET_UP_FD), "--userns2", str(RUN_FD), "--uid", _INSIDE, "--gid", _INSIDE)

    def entry(self, *, mounts_of: int | None = None) -> tuple[str, ...]:
        """The host command that runs bubblewrap as the server's id, among the mounts of that process."""
        mounts = () if mounts_of is None else ("--mount", "--target", str(mounts_of))
        return (_NSENTER, *mounts, "--setuid", str(SERVER_ID), "--setgid", str(SERVER_ID), "--")

    def opened(self, command: list[str]) -> list[str]:
        """The command, begun with the namespaces open."""
        return ["/bin/sh", "-c", f'{OPEN_NAMESPACES}exec "$@"', "sh", *self.namespaces(), *command]


def identity() -> Identity | None:
    """Made and tried out once; None if servers have the harness's id on the host: `why_none` says why."""
    found = _tried() if os.getuid() == 0 else ""
    return found if isinstance(found, Identity) else None


def why_none() -> str:
    """Empty if servers have an id of their own, or the harness is not root."""
    found = _tried() if os.getuid() == 0 else ""
    return found if isinstance(found, str) else ""


def id_on_the_host() -> int:
    """The user that owns what a server owns."""
    return SERVER_ID if identity() is not None else os.getuid()


@functools.cache
def warn_once() -> None:
    """Says in the log what is weaker, if something is."""
    if why := why_none():
        log.warning("bwrap: servers get no user of their own on the host and stay root's, which is weaker: %s", why)


def describe_identity() -> str:
    """For `gymcp doctor`."""
    if os.getuid() != 0:
        return f"servers are user {os.getuid()} on the host, as gymcp is, without its capabilities"
    if why := why_none():
        return (
            "weaker: servers have root's id on the host, without its capabilities, and only masks keep its settings "
            f"and devices from them; give gymcp the right to make user namespaces, or run it as an ordinary user: {why}"
        )
    return f"servers are user {SERVER_ID} on the host, whom nothing of root's belongs to"


@functools.cache
def _tried() -> Identity | str:
    try:
        found = _made()
        _probe(found)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return found


def _made() -> Identity:
    for program in (_NSENTER, SETPRIV):
        if not os.access(program, os.X_OK):
            raise OSError(f"{program} is not there: install util-linux")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        ours.settimeout(_TIMEOUT_S)
        with theirs:
            script = str(Path(__file__).with_name("user_namespaces.py"))
            done = subprocess.run(
                [sys.executable, "-I", "-S", script, str(SERVER_ID)],
                stdin=subprocess.DEVNULL,
                stdout=theirs.fileno(),
                stderr=subprocess.PIPE,
                cwd="/",
                timeout=_TIMEOUT_S,
                check=False,
            )
        found: list[int] = []
        while len(found) < 3:
            said, fds, _, _ = socket.recv_fds(ours, 4096, 1)
            found += fds
            if said != b"ok":
                for fd in found:
                    os.close(fd)
                reason = done.stderr.decode(errors="replace").strip()
                raise OSError(f"{said.decode(errors='replace') or 'no namespaces'}: {reason or 'no reason given'}")
    for fd in found:
        os.set_inheritable(fd, False)
    return Identity(set_up=found[0], run=found[1], run_spawner=found[2])


def _probe(found: Identity) -> None:
    """Bubblewrap must be able to enter them. A machine without it is told so by `Bubblewrap.check`."""
    if (binary := shutil.which("bwrap")) is None:
        return
    command = [*found.entry(), binary, *found.arguments, "--unshare-pid", "--cap-drop", "ALL"]
    command += ["--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(found.opened(command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"bubblewrap cannot use its namespaces: {done.stderr.strip()}")
