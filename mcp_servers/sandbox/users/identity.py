"""The user that a confined server is on the host: a dedicated one under a root harness, else the harness's user.

A root harness creates user namespaces once (`user_namespaces.py`), and bubblewrap enters them instead of creating new
ones at every start. A server is then user `SERVER_ID` on the host, who owns only the workspaces that the harness gives
to it: no file of root, no device node and no kernel setting.

An ordinary user cannot give servers another id: they are that user, without capabilities, and see only what is mounted.
The same holds for a root that may not create these namespaces (`why_no_own_user` tells the reason): then what root's id
allows even without capabilities is closed one by one, as `rootfs.py` describes, and the import of a third-party program
in the fork server is the weakest point.
"""

from __future__ import annotations

import functools
import logging
import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap
from gymcp.process_owner import SERVER_ID

SET_UP_FD, RUN_FD = 8, 9
"""File descriptors of the namespaces for bubblewrap: a shell can open and close descriptors of one digit only."""
OPEN_NAMESPACES = f'exec {SET_UP_FD}<"$1" {RUN_FD}<"$2" || exit 125; shift 2; '
"""Shell code whose first two arguments are `Identity.namespaces`."""
CLOSE_NAMESPACES = f"exec {SET_UP_FD}<&- {RUN_FD}<&-; "
SETPRIV = "/usr/bin/setpriv"
_INSIDE = "65534"
_NSENTER = "/usr/bin/nsenter"
_TIMEOUT_S = 20.0

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Descriptors of the user namespaces, open as long as this process lives."""

    set_up: int
    run: int
    run_spawner: int

    def namespaces(self, *, spawner: bool = False) -> tuple[str, str]:
        """Paths of two user namespaces: the one to set up a sandbox in, and the one to run its server in."""
        folder = f"/proc/{os.getpid()}/fd"
        return f"{folder}/{self.set_up}", f"{folder}/{self.run_spawner if spawner else self.run}"

    @property
    def arguments(self) -> tuple[str, ...]:
        """Options that make bubblewrap enter these namespaces instead of a new one."""
        return ("--userns", str(SET_UP_FD), "--userns2", str(RUN_FD), "--uid", _INSIDE, "--gid", _INSIDE)

    def entry(self, *, mounts_of: int | None = None) -> tuple[str, ...]:
        """Host command that runs bubblewrap as the server's user, in the mount namespace of `mounts_of` if given."""
        mounts = () if mounts_of is None else ("--mount", "--target", str(mounts_of))
        return (_NSENTER, *mounts, "--setuid", str(SERVER_ID), "--setgid", str(SERVER_ID), "--")

    def with_namespaces(self, command: list[str]) -> list[str]:
        """The command, with the namespaces open in its process."""
        return ["/bin/sh", "-c", f'{OPEN_NAMESPACES}exec "$@"', "sh", *self.namespaces(), *command]


def identity() -> Identity | None:
    """The servers' own identity, created and tried once; None if servers have the harness's user id on the host.

    `why_no_own_user` tells the reason.
    """
    result = _try_identity() if os.getuid() == 0 else ""
    return result if isinstance(result, Identity) else None


def why_no_own_user() -> str:
    """The reason why a root harness cannot give servers an own user; empty if it can, or the harness is not root."""
    result = _try_identity() if os.getuid() == 0 else ""
    return result if isinstance(result, str) else ""


def id_on_the_host() -> int:
    """The user on the host that owns a server's files."""
    return SERVER_ID if identity() is not None else os.getuid()


@functools.cache
def warn_if_shared_id() -> None:
    """Log a warning, once, if servers share root's user id on the host."""
    if why := why_no_own_user():
        log.warning("bwrap: servers get no user of their own on the host and stay root's, which is weaker: %s", why)


def describe_identity() -> str:
    """Sentence for `gymcp doctor` about the servers' user on the host."""
    if os.getuid() != 0:
        return f"servers are user {os.getuid()} on the host, as gymcp is, without its capabilities"
    if why := why_no_own_user():
        return (
            "weaker: servers have root's id on the host, without its capabilities, and only masks keep its settings "
            f"and devices from them; give gymcp the right to make user namespaces, or run it as an ordinary user: {why}"
        )
    return f"servers are user {SERVER_ID} on the host, whom nothing of root's belongs to"


@functools.cache
def _try_identity() -> Identity | str:
    try:
        own = _make_identity()
        _probe(own)
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    return own


def _make_identity() -> Identity:
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
        namespaces: list[int] = []
        while len(namespaces) < 3:
            answer, fds, _, _ = socket.recv_fds(ours, 4096, 1)
            namespaces += fds
            if answer != b"ok":
                for fd in namespaces:
                    os.close(fd)
                reason = done.stderr.decode(errors="replace").strip()
                raise OSError(f"{answer.decode(errors='replace') or 'no namespaces'}: {reason or 'no reason given'}")
    for fd in namespaces:
        os.set_inheritable(fd, False)
    return Identity(set_up=namespaces[0], run=namespaces[1], run_spawner=namespaces[2])


def _probe(own: Identity) -> None:
    """Raise OSError if bubblewrap cannot enter the namespaces. `Bubblewrap.check` reports a missing bubblewrap."""
    if (binary := find_bwrap()) is None:
        return
    command = [*own.entry(), binary, *own.arguments, "--unshare-pid", "--cap-drop", "ALL"]
    command += ["--ro-bind", "/", "/", "--proc", "/proc", "true"]
    done = subprocess.run(own.with_namespaces(command), capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode != 0:
        raise OSError(f"bubblewrap cannot use its namespaces: {done.stderr.strip()}")
