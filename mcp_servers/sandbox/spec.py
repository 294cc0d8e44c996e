"""Records that every sandbox backend takes: the command to run, what it may see, and how much it may use."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of the whole process tree of one server, not of each process."""

    memory_mb: int = 512
    processes: int = 64
    cpu_s: float = 600.0
    disk_mb: int = 256
    """Megabytes that the server may add to its workspace; /tmp has the same size, counted apart."""
    stderr_bytes: int = 64_000
    """Size of the tail of standard error that is kept; the rest is read and dropped."""
    line_bytes: int = 4_000_000
    """Longest line on standard output. A longer answer fails its request; any other long line is a `ProtocolError`."""
    open_files: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A file or folder of the host that a server sees."""

    source: Path
    """File or folder on the host."""
    target: PurePosixPath
    """Path inside the sandbox."""
    writable: bool = False


Image = str | Path | None
"""Docker image: a name, or the path of a Dockerfile that is built in its folder, or None for the base image of
`gymcp sandbox build`. Other sandboxes take None only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forkable:
    """A Python program to import once and fork for every episode (`gymcp.mcp_servers.forkserver.warm_sandbox`)."""

    path: tuple[str, ...]
    """Folders to import from, as paths inside the sandbox."""
    module: str
    """Module whose import starts nothing. Its ``main()`` serves; its ``preload()``, if it has one, imports the rest."""
    python: tuple[str, ...] = ("python3", "-s", "-S", "-B")
    """The interpreter and its options."""
    script: tuple[str, ...] = ()
    """A third-party program as the arguments of ``python``: a file, or ``-m`` and a module; then its arguments.
    `module` runs it. Empty for gymcp's own servers."""
    mounts: tuple[Mount, ...] = ()
    """Mounts that only the fork server and the servers forked from it see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server process."""

    argv: tuple[str, ...]
    """Command with paths inside the sandbox. ``python3`` as first word means the sandbox's own interpreter; an empty
    command means the image's own."""
    image: Image = None
    env: Mapping[str, str] = field(default_factory=dict)
    """The whole environment of the server: it inherits nothing."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Secret value -> the text that replaces it wherever the process's standard error is shown."""
    mounts: tuple[Mount, ...] = ()
    workspace: Path | None = None
    """Host folder mounted writable at /workspace, the server's working directory; None for an empty private one."""
    read_only: bool = False
    """True if the workspace is mounted read-only."""
    network: bool = False
    loopback: bool = False
    """True if the server may open internet sockets that reach only its own loopback: processes of the same launch."""
    limits: Limits = field(default_factory=Limits)
    entry: tuple[str, ...] = ()
    """Host command that starts the sandbox in the namespaces in which the workspace is mounted."""
    upper_folder: Path | None = None
    """Host folder in which the server's writes to the workspace appear: an overlay's upper layer; None for `workspace`
    itself."""
    reads_all: bool = False
    """True if the server may read every file below its mounts, whatever the file's mode."""
    fork: Forkable | None = None
    """The same program in a form that a forking sandbox uses; other sandboxes run `argv`."""
    warm_pool_size: int = 0
    """Number of servers that a sandbox with a warm pool may start ahead."""
    spawner: bool = False
    """True only for gymcp's own `spawner.py`, which sandboxes what it starts. It may create user namespaces, has no
    seccomp filter, and has the host's /proc at /.proc, which it covers before anything else."""
    fds: tuple[int, ...] = ()
    """File descriptors above 9 that the server gets under the same numbers; closed here once it has them."""


class SandboxProcess(Protocol):
    """A running server. Leaving its context kills the whole process tree and waits until it is gone."""

    @property
    def stdin(self) -> asyncio.StreamWriter: ...

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int:
        """Wait until the server has ended, by itself or by a limit, and return its exit status."""
        ...

    def stderr_tail(self) -> str:
        """Last part of standard error, at most `Limits.stderr_bytes`, for an error message."""
        ...

    async def drain_stderr(self) -> None:
        """Wait until all standard error has been read, so that `stderr_tail` is complete for an error message.

        Call it only for a server that is not used any more: with Docker it kills the server.
        """
        ...

    def exceeded_limit(self) -> str | None:
        """The limit that ended the server, in words; None if no limit did."""
        ...


class Sandbox(Protocol):
    """A backend that turns a `Launch` into a running process: a longer argv plus limits."""

    @property
    def name(self) -> str: ...

    @property
    def confined(self) -> bool:
        """False if a server can do whatever the harness's user can."""
        ...

    @property
    def can_fork(self) -> bool:
        """True if servers that allow it are forked from warm ones (`forkserver.warm_sandbox.open_warm_sandbox`)."""
        ...

    @property
    def runs_images(self) -> bool:
        """True if servers run from images, with the interpreter in there instead of the host's."""
        ...

    @property
    def has_server_user(self) -> bool:
        """True if servers run as a user of the host, to whom their files must be given before they start."""
        ...

    @property
    def mounts_overlays(self) -> bool:
        """True if a workspace may be an overlay: `Launch.entry` starts the sandbox in the namespaces that have it."""
        ...

    def check(self) -> None:
        """Raise SandboxUnavailable, with what to install, if this machine lacks something."""
        ...

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        """Run the server until the context is left. Raises EnvInfraError if it cannot be started."""
        ...
