"""Run the build steps of packages inside bubblewrap: without network, with limits.

Everything a build needs is fetched beforehand, as files. A build sees the system's programs and headers, its mounts,
and one folder to write to. The files that it leaves there are as untrusted as a server's messages.
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
_TAIL_BYTES = 64_000
_CHUNK_BYTES = 1 << 16
_ENVIRONMENT = {"SOURCE_DATE_EPOCH": "315532800", "PYTHONHASHSEED": "0", "CI": "1"}
"""Settings with which builds that support it are reproducible. The date is in 1980, when zip's time begins."""


def build_sandbox(who: str) -> Sandbox:
    """The sandbox that builds run in. Raises SandboxUnavailable: nothing is ever built without a sandbox."""
    sandbox = get_sandbox("bwrap")
    try:
        sandbox.check()
    except SandboxUnavailable as error:
        raise SandboxUnavailable(f"{who}: is built inside bubblewrap only: {error}") from error
    return sandbox


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
    """Run `argv` with `folder` as its writable /workspace. Raises UsageError with the end of the build's output."""
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
    """Content of a plain file that a build left directly in its folder. Raises IntegrityError for anything else."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise IntegrityError(f"build: '{path.name}' cannot be read: {error.strerror}") from error
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_size > max_bytes:
            raise IntegrityError(f"build: '{path.name}' is not a plain file of at most {max_bytes} bytes")
        return file.read(max_bytes)


def refuse_traps(who: str, folder: Path) -> None:
    """Raise IntegrityError if a build has left a special file, or a link that leads out of its folder."""
    root = os.path.realpath(folder)
    for where, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = Path(where, name)
            mode = path.lstat().st_mode
            place = path.relative_to(folder)
            if stat.S_ISLNK(mode):
                if not os.path.realpath(path).startswith(root + os.sep):
                    raise IntegrityError(f"{who}: it left '{place}', a link to outside its folder")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise IntegrityError(f"{who}: it left '{place}', which is neither a file nor a folder")


async def _run(sandbox: Sandbox, launch: Launch, timeout_s: float) -> str | None:
    """Reason for which the build failed; None if it succeeded."""
    try:
        async with asyncio.timeout(timeout_s), sandbox.start(launch) as process:
            with contextlib.suppress(ConnectionError):
                process.stdin.close()
            output = await _read_tail(process)
            status = await process.wait()
            if status == 0 and process.exceeded_limit() is None:
                return None
            words = last_words(plain_text(process.stderr_tail() + "\n" + output))
            return f"{process.exceeded_limit() or f'the build ended with status {status}'}; its last words: {words}"
    except TimeoutError:
        return f"the build did not end within {timeout_s:g} s"


async def _read_tail(process: SandboxProcess) -> str:
    """End of the standard output. Only the end is kept in memory, because a build may write without end."""
    tail = bytearray()
    while chunk := await process.stdout.read(_CHUNK_BYTES):
        tail += chunk
        del tail[:-_TAIL_BYTES]
    return tail.decode(errors="replace")
