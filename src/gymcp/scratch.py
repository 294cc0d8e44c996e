"""The private temporary folder of a gymcp process, removed when the process exits."""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

from gymcp.errors import SandboxUnavailable
from gymcp.process_owner import lock_folder, owner


def runtime_folder() -> Path:
    """Folder that holds the scratch folders of this user's harnesses; it may not exist."""
    return Path(tempfile.gettempdir()) / f"gymcp-{os.getuid()}"


def scratch_folder() -> Path:
    """This process's private folder, made on first use and removed at exit.

    Raises SandboxUnavailable if another user has made the folder that should hold it.
    """
    return _scratch_of(os.getpid(), runtime_folder())


@functools.cache
def _scratch_of(pid: int, root: Path) -> Path:
    root.mkdir(mode=0o700, exist_ok=True)
    _check_private(root)
    folder = root / owner()
    folder.mkdir(mode=0o700, exist_ok=True)
    lock_folder(folder)  # locked as long as this process lives
    atexit.register(_remove_own_scratch, pid, folder)
    return folder


def _check_private(root: Path) -> None:
    status = root.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise SandboxUnavailable(
            f"{root}: not a private folder of user {os.getuid()}: remove it, or set TMPDIR elsewhere"
        )


def _remove_own_scratch(pid: int, folder: Path) -> None:
    if os.getpid() == pid:  # a fork inherits the exit handlers
        remove_tree(folder)


def remove_tree(folder: Path) -> None:
    """Remove the folder with its content, whatever the modes and the depth; `gymcp clean` removes what remains."""
    with contextlib.suppress(OSError, RecursionError):
        shutil.rmtree(folder)
        return
    if folder.exists():
        path = str(folder)
        for command in (["chmod", "-R", "u+rwX", path], ["rm", "-rf", "--one-file-system", "--", path]):
            subprocess.run(command, capture_output=True, check=False)
