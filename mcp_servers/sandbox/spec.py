"""What to run, what it may see, and how much it may use: the records every sandbox backend takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """For the whole process tree of one server, not per process."""

    memory_mb: int = 512
    processes: int = 64
    cpu_s: float = 600.0
    disk_mb: int = 256
    """Bytes the server may add in its workspace; /tmp has the same size of its own."""
    stderr_bytes: int = 64_000
    """Kept tail of standard error; the rest is read and dropped."""
    line_bytes: int = 4_000_000
    """Longest line on standard output; a longer answer is an error of its request, any other one a `ProtocolError`."""
    open_files: int = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    source: Path
    """On the host: a file or a folder."""
    target: PurePosixPath
    """Inside."""
    writable: bool = False


Image = str | Path | None
"""Docker only. A name; the path of a Dockerfile, built in its folder; None: the base image of `gymcp sandbox build`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forkable:
    """A Python program to import once and fork for every episode (`gymcp.mcp_servers.forkserver.warm_sandbox`)."""

    path: tuple[str, ...]
    """Folders to import from, as seen from inside."""
    module: str
    """Importing it starts nothing; its ``main()`` serves; its ``preload()``, where there is one, imports the rest."""
    python: tuple[str, ...] = ("python3", "-s", "-S", "-B")
    """The interpreter and its options."""
    script: tuple[str, ...] = ()
    """A program of others, as ``python`` is told: a file or ``-m`` and a module, then arguments. `module` runs it."""
    mounts: tuple[Mount, ...] = ()
    """Seen by the template and its servers only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One server process."""

    argv: tuple[str, ...]
    """As seen from inside. ``python3`` in front means the sandbox's own interpreter; empty: the image's own command."""
    image: Image = None
    env: Mapping[str, str] = field(default_factory=dict)
    """All of it: nothing is inherited."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False, compare=False)
    """Value -> what is written in its place, wherever the process's last words are told."""
    mounts: tuple[Mount, ...] = ()
    workspace: Path | None = None
    """A host folder mounted writable at /workspace, where the server starts; None: an empty private one."""
    read_only: bool = False
    """The workspace is not writable."""
    network: bool = False
    loopback: bool = False
    """May open internet sockets, which reach nothing but a loopback of its own: other processes of the same launch."""
    limits: Limits = field(default_factory=Limits)
    entry: tuple[str, ...] = ()
    """Host command through which the sandbox is started, into the namespaces where the workspace is mounted."""
    written: Path | None = None
    """The host folder in which the server's writes to the workspace appear; None: `workspace` itself."""
    reads_all: bool = False
    """May read files below its mounts whatever their mode says."""
    fork: Forkable | None = None
    """The same program for a sandbox that forks; others run `argv`."""
    warm_pool_size: int = 0
    """How many a sandbox that keeps spares may have started ahead."""
    spawner: bool = False
    """It makes walls of its own for what it starts: it may make user namespaces, without a seccomp filter, and has the
    host's /proc at /.proc, which it covers first of all. Only for gymcp's own `spawner.py`."""
    fds: tuple[int, ...] = ()
    """Handed to the server under the same numbers, above 9; closed here once it has them."""


class SandboxProcess(Protocol):
    """A running server. Leaving its context ends the whole tree and waits until it is gone."""

    @property
    def stdin(self) -> asyncio.StreamWriter: ...

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int:
        """The exit status, once the server has ended by itself or by a limit."""
        ...

    def stderr_tail(self) -> str:
        """The last of standard error, at most `Limits.stderr_bytes`, for the message of a failure."""
        ...

    async def settled(self) -> None:
        """Before the failure of a server that nobody uses again is told: all it has said is then in `stderr_tail`."""
        ...

    def limit_hit(self) -> str | None:
        """Which limit ended the server, in words; None where none did."""
        ...


class Sandbox(Protocol):
    """A longer argv plus limits."""

    @property
    def name(self) -> str: ...

    @property
    def confined(self) -> bool:
        """False where a server can do whatever the harness's user can."""
        ...

    def check(self) -> None:
        """Raises SandboxUnavailable, saying what to install, where this machine lacks something."""
        ...

    def start(self, launch: Launch) -> AbstractAsyncContextManager[SandboxProcess]:
        """Runs the server until the context is left. Raises EnvInfraError where it cannot be started."""
        ...
