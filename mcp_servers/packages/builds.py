"""Running what a package brings to build itself: behind bubblewrap's wall, without network, with limits.

All that a build needs is fetched beforehand, as files. It sees the system's programs and headers, what is mounted, and
one folder to write to; what it leaves there is as hostile as what a server says.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from gymcp.errors import IntegrityError, SandboxUnavailable, UsageError
from gymcp.mcp_servers.packages.install_folder import last_words
from gymcp.mcp_servers.sandbox import Launch, Limits, Mount, Sandbox, SandboxProcess, get_sandbox
from gymcp.mcp_servers.sanitize import plain_text

TIMEOUT_S = 900.0
LIMITS = Limits(memory_mb=2048, processes=256, cpu_s=1800.0, disk_mb=1000)
_FOR_COMPILERS = ("/usr/include", "/usr/lib/gcc", "/usr/share/pkgconfig", "/usr/local/include")
_KEPT_BYTES = 64_000
_CHUNK = 1 << 16
_ENVIRONMENT = {"SOURCE_DATE_EPOCH": "315532800", "PYTHONHASHSEED": "0", "CI": "1"}
"""The same files every time, where the build knows how: a zip archive begins in 1980."""


def build_wall(who: str) -> Sandbox:
    """Where builds run. Raises SandboxUnavailable: nothing is ever built without a sandbox."""
    wall = get_sandbox("bwrap")
    try:
        wall.check()
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"{who}: is built inside bubblewrap only: {error}") from error
    return wall


def run_build(
    who: str,
    argv: Sequence[str],
    folder: Path,
    *,
    sandbox: Sandbox,
    mounts: Sequence[Mount] = (),
    env: Mapping[str, str] | None = None,
    limits: Limits = LIMITS,
    timeout_s: float = TIMEOUT_S,
) -> None:
    """Runs `argv` in `folder`, which it may write to, as /workspace. Raises UsageError with its last words."""
    headers = [Mount(source=path, target=PurePosixPath(path)) for path in map(Path, _FOR_COMPILERS) if path.is_dir()]
    launch = Launch(
        argv=tuple(argv),
        env={**_ENVIRONMENT, **(env or {})},
        mounts=(*headers, *mounts),
        workspace=folder,
        limits=limits,
    )
    with ThreadPoolExecutor(max_workers=1) as thread:  # the caller may be inside an event loop of its own
        why = thread.submit(asyncio.run, _run(sandbox, launch, timeout_s)).result()
    if why is not None:
        raise UsageError(f"{who}: {why}")


def read_written(path: Path, max_bytes: int) -> bytes:
    """What a build left as a plain file directly in its folder. Raises IntegrityError for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise IntegrityError(f"build: '{path.name}' cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
            raise IntegrityError(f"build: '{path.name}' is not a plain file of at most {max_bytes} bytes")
        return file.read(max_bytes)


def refuse_traps(who: str, folder: Path) -> None:
    """Raises IntegrityError for what a build has left that is no plain file or folder, or a link that leads out."""
    root = os.path.realpath(folder)
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(where, name)
            mode = path.lstat().st_mode
            shown = path.relative_to(folder)
            if stat.S_ISLNK(mode):
                if not os.path.realpath(path).startswith(root + os.sep):
                    raise IntegrityError(f"{who}: it left '{shown}', a link to outside its folder")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise IntegrityError(f"{who}: it left '{shown}', which is neither a file nor a folder")


async def _run(sandbox: Sandbox, launch: Launch, timeout_s: float) -> str | None:
    """Why it failed, in words; None where it did not."""
    try:
        async with asyncio.timeout(timeout_s), sandbox.start(launch) as process:
            with contextlib.suppress(ConnectionError):
                process.stdin.close()
            said = await _tail(process)
            status = await process.wait()
            if status == 0 and process.limit_hit() is None:
                return None
            words = last_words(plain_text(process.stderr_tail() + "\n" + said))
            return f"{process.limit_hit() or f'the build ended with status {status}'}; its last words: {words}"
    except TimeoutError:
        return f"the build did not end within {timeout_s:g} s"


async def _tail(process: SandboxProcess) -> str:
    """Of standard output: a build may write without end."""
    tail = bytearray()
    while chunk := await process.stdout.read(_CHUNK):
        tail += chunk
        del tail[:-_KEPT_BYTES]
    return tail.decode(errors="replace")
