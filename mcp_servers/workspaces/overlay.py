"""Overlays without privilege: one process holds the namespaces of all of them, sandboxes are started through it."""

from __future__ import annotations

import atexit
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path

from gymcp.errors import EnvInfraError
from gymcp.mcp_servers.sandbox.users.identity import Identity, identity
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers
from gymcp.process_owner import OWNER_VARIABLE, owner
from gymcp.scratch import remove_tree, scratch_folder

_PROBE_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 20.0
_PROBE_SHOWN = ("/usr", "/bin", "/lib", "/lib64")
_SEPARATORS = ":,\\\n"


class OverlayNamespace:
    """A live mounter. Its answers take a tenth of a millisecond, so they are waited for."""

    def __init__(self) -> None:
        own = identity()
        shared = (own.set_up,) if own is not None else ()
        self._answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._answers.settimeout(_ANSWER_TIMEOUT_S)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(Path(__file__).with_name("mounter.py")), *map(str, shared)],
                stdin=subprocess.PIPE,
                stdout=theirs.fileno(),
                stderr=subprocess.DEVNULL,
                env={OWNER_VARIABLE: owner()},
                cwd="/",
                start_new_session=True,
                pass_fds=shared,
            )
        self._lock = threading.Lock()
        self.entry = _entry(own, self.pid)
        """Runs bubblewrap among the mounts."""
        self._expect_ok()

    @property
    def pid(self) -> int:
        """Of the mounting process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def mount(self, lower: Path, upper: Path, work: Path, merged: Path) -> None:
        """Raises EnvInfraError where the kernel refuses."""
        self._ask(["mount", *map(str, (lower, upper, work, merged))])

    def unmount(self, merged: Path) -> None:
        self._ask(["unmount", str(merged)])

    def tree(self, merged: Path, *, read_only: bool = False) -> int:
        """A descriptor of the mount, which another namespace can attach anywhere; the caller closes it.

        Raises EnvInfraError; for `read_only` before Linux 5.12.
        """
        (fd,) = self._ask(["tree", str(merged), "ro" if read_only else "rw"])
        return fd

    def close(self) -> None:
        self._answers.close()
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.kill()
        self._process.wait()

    def _ask(self, request: list[str]) -> list[int]:
        with self._lock:
            assert self._process.stdin is not None
            try:
                self._process.stdin.write(json.dumps(request).encode() + b"\n")
                self._process.stdin.flush()
            except (OSError, ValueError) as error:
                raise EnvInfraError(f"overlay: the mounting process is gone: {error}") from error
            return self._expect_ok()

    def _expect_ok(self) -> list[int]:
        try:
            said, fds, _, _ = socket.recv_fds(self._answers, 4096, 1)
        except OSError as error:
            raise EnvInfraError(f"overlay: no answer from the mounting process: {error}") from error
        if said != b"ok":
            raise EnvInfraError(f"overlay: {said.decode(errors='replace') or 'the mounting process ended'}")
        for fd in fds:
            os.set_inheritable(fd, False)
        return fds


def _entry(own: Identity | None, pid: int) -> tuple[str, ...]:
    if own is not None:
        return own.entry(mounts_of=pid)
    return ("nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(pid), "--")


def can_be_mounted(*paths: Path) -> bool:
    """False where a path cannot be a mount option."""
    return not any(mark in str(path) for path in paths for mark in _SEPARATORS)


def overlay_namespace() -> OverlayNamespace | None:
    """This process's, made and tried out once; None where the machine cannot do it: `why_no_overlay` says why."""
    found = _tried(os.getpid())
    return found if isinstance(found, OverlayNamespace) else None


def why_no_overlay() -> str:
    found = _tried(os.getpid())
    return found if isinstance(found, str) else ""


_trying = threading.Lock()


def _tried(pid: int) -> OverlayNamespace | str:
    with _trying:
        found = _try(pid)
        if isinstance(found, OverlayNamespace) and not found.is_alive:
            _try.cache_clear()  # killed: what was mounted is lost, what comes need not be
            found = _try(pid)
        return found


@functools.cache
def _try(pid: int) -> OverlayNamespace | str:
    for program in ("nsenter", "bwrap"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    namespace: OverlayNamespace | None = None
    if not can_be_mounted(scratch_folder()):
        return f"{scratch_folder()} has one of the characters : , \\ in it"
    try:
        namespace = OverlayNamespace()
        _probe(namespace)
    except (EnvInfraError, OSError, subprocess.SubprocessError) as error:
        if namespace is not None:
            namespace.close()
        return str(error)
    atexit.register(lambda: namespace.close() if os.getpid() == pid else None)
    return namespace


def _probe(namespace: OverlayNamespace) -> None:
    """A sandbox inside must be able to change a file, and the change must stay out of the lower folder."""
    folder = scratch_folder() / "overlay-probe"
    lower, upper, work, merged = (folder / name for name in ("lower", "upper", "work", "merged"))
    try:
        for path in (lower, upper, work, merged):
            path.mkdir(parents=True)
        (lower / "file").write_text("old")
        for path in (lower, upper):
            give_to_servers(path)
        namespace.mount(lower, upper, work, merged)
        script = 'echo new >>"$0"/file'
        own = identity()
        user = own.arguments if own is not None else ("--unshare-user",)
        sandbox = ("bwrap", *user, "--unshare-pid", "--bind", str(merged), str(merged))
        system = (word for path in _PROBE_SHOWN if os.path.exists(path) for word in ("--ro-bind", path, path))  # noqa: PTH110
        command = [*namespace.entry, *sandbox, *system, "--proc", "/proc", "/bin/sh", "-c", script, str(merged)]
        subprocess.run(
            own.with_namespaces(command) if own is not None else command,
            check=True,
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
        )
        namespace.unmount(merged)
        if (lower / "file").read_text() != "old" or (upper / "file").read_text() != "oldnew\n":
            raise EnvInfraError("overlay: a write did not go where it should")
    finally:
        remove_tree(folder)
