"""Overlays without privilege: one process holds the namespaces of all overlays, and sandboxes start through it."""

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
from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap
from gymcp.mcp_servers.sandbox.users.identity import Identity, identity
from gymcp.mcp_servers.sandbox.users.ownership import give_to_servers
from gymcp.process_owner import OWNER_VARIABLE, owner
from gymcp.scratch import remove_tree, scratch_folder

_PROBE_TIMEOUT_S = 10.0
_ANSWER_TIMEOUT_S = 20.0
_PROBE_MOUNTS = ("/usr", "/bin", "/lib", "/lib64")
_OPTION_SEPARATORS = ":,\\\n"


class OverlayNamespace:
    """The running mounter process. Its answers take a tenth of a millisecond, so callers block for them."""

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
        """Host command that runs bubblewrap in the namespaces of the mounts."""
        self._expect_ok()

    @property
    def pid(self) -> int:
        """Process id of the mounter."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def mount(self, lower: Path, upper: Path, work: Path, merged: Path) -> None:
        """Mount an overlay. Raises EnvInfraError if the kernel refuses."""
        self._ask(["mount", *map(str, (lower, upper, work, merged))])

    def unmount(self, merged: Path) -> None:
        self._ask(["unmount", str(merged)])

    def open_tree(self, merged: Path, *, read_only: bool = False) -> int:
        """Descriptor of the mount, which another namespace can attach anywhere; the caller closes it.

        Raises EnvInfraError, for `read_only` on every Linux before 5.12.
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
            answer, fds, _, _ = socket.recv_fds(self._answers, 4096, 1)
        except OSError as error:
            raise EnvInfraError(f"overlay: no answer from the mounting process: {error}") from error
        if answer != b"ok":
            raise EnvInfraError(f"overlay: {answer.decode(errors='replace') or 'the mounting process ended'}")
        for fd in fds:
            os.set_inheritable(fd, False)
        return fds


def _entry(own: Identity | None, pid: int) -> tuple[str, ...]:
    if own is not None:
        return own.entry(mounts_of=pid)
    return ("nsenter", "--preserve-credentials", "--user", "--mount", "--target", str(pid), "--")


def is_mountable(*paths: Path) -> bool:
    """True if every path can be part of a mount option."""
    return not any(separator in str(path) for path in paths for separator in _OPTION_SEPARATORS)


def overlay_namespace() -> OverlayNamespace | None:
    """The namespace of this process, opened and tried once; None if this machine has no overlays.

    `why_no_overlay` tells the reason.
    """
    result = _current_namespace(os.getpid())
    return result if isinstance(result, OverlayNamespace) else None


def why_no_overlay() -> str:
    """The reason why this machine has no overlays; empty if it has."""
    result = _current_namespace(os.getpid())
    return result if isinstance(result, str) else ""


_opening_lock = threading.Lock()


def _current_namespace(pid: int) -> OverlayNamespace | str:
    with _opening_lock:
        result = _open_namespace(pid)
        if isinstance(result, OverlayNamespace) and not result.is_alive:
            _open_namespace.cache_clear()  # it was killed: its mounts are lost, but new ones can be made
            result = _open_namespace(pid)
        return result


@functools.cache
def _open_namespace(pid: int) -> OverlayNamespace | str:
    for program, path in (("nsenter", shutil.which("nsenter")), ("bwrap", find_bwrap())):
        if path is None:
            return f"{program} is not installed"
    namespace: OverlayNamespace | None = None
    if not is_mountable(scratch_folder()):
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
    """Check that a sandbox in the namespace can change a file, and that the change does not reach the lower folder.

    Raises EnvInfraError, OSError or SubprocessError if not.
    """
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
        sandbox = (find_bwrap() or "bwrap", *user, "--unshare-pid", "--bind", str(merged), str(merged))
        system = (word for path in _PROBE_MOUNTS if os.path.exists(path) for word in ("--ro-bind", path, path))  # noqa: PTH110
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
