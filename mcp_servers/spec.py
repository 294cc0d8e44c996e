"""Which server to run, and how the harness knows its state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gymcp.errors import ConfigError
from gymcp.mcp_servers.sandbox.spec import Forkable, Image, Launch, Limits, Mount
from gymcp.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class DigestLimits:
    """A world beyond one of these has no digest: an episode that takes it there ends, graded on the state before."""

    bytes: int = 512_000_000
    """Of all files together; of a database, a quarter."""
    entries: int = 100_000
    depth: int = 64
    seconds: float = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FileState:
    """The server's state is what it has written below /workspace when a call returns.

    A task's ``initial_state`` is then ``{"files": ..., "commands": ...}`` (`gymcp.mcp_servers.workspaces.seeds`).
    """

    kind: Literal["workspace", "sqlite", "git"] = "workspace"
    """workspace: all files. sqlite: schema and rows of a database. git: HEAD, refs, index and work tree."""
    path: str = "."
    """Of the folder, database or repository, below /workspace."""
    masks: tuple[str, ...] = ()
    """Patterns of paths below `path` that are left out: what differs from run to run, such as ``*.log``."""
    limits: DigestLimits = field(default_factory=DigestLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPort:
    """Where a server listens that speaks only streamable HTTP: on a loopback of its sandbox's own."""

    port: int
    path: str = "/mcp"

    @classmethod
    def parse(cls, text: str) -> HttpPort:
        """From ``3000`` or ``3000/mcp``. Raises ConfigError."""
        match = re.fullmatch(r":?(\d{1,5})(/\S*)?", text)
        if match is None or not 1 <= int(match[1]) <= 65535:
            raise ConfigError(f"http port '{text}': expected PORT or PORT/PATH, such as 3000/mcp")
        return cls(port=int(match[1]), path=match[2] or "/mcp")


StateSource = Literal["declared", "opaque", "stateless"] | FileState


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSpec:
    """One MCP server."""

    name: str
    argv: tuple[str, ...] = ()
    """As seen from inside the sandbox; ``python3`` is the sandbox's own interpreter. Empty: the image's command."""
    image: Image = None
    """Runs under the docker sandbox only. A name, or the path of a Dockerfile; None: any sandbox."""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    network: bool = False
    http: HttpPort | None = None
    """None: the server speaks over standard input and output. Else `gymcp.mcp_servers.transports.http_bridge` carries
    its messages."""
    url: str | None = None
    """Of a server that runs elsewhere: nothing is started, and only a stateless one may be called without a cassette.
    ``${NAME}`` stands for an environment variable, here and in `headers`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Sent to `url` with every request."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Value -> ``${NAME}`` of the environment variables that are filled in in `env` and `argv`.

    What those stand for, and those of `url` and `headers`, is replaced in all that the server says before anything
    else sees it (`gymcp.mcp_servers.redaction`): messages, last words, errors. So no lock, cassette, run, log or prompt
    holds it because a server has repeated it, as it is or in a common encoding. Not found: values below 8 characters
    (refused, if they are secrets by name), pieces, other transformations, and what a server writes into its files."""
    cassette: Path | None = None
    """A recording of `url`, played instead of calling it (`gymcp.mcp_servers.transports.cassette`)."""
    recording: bool = False
    """Calls go to `url`, and what is new is added to the cassette."""
    limits: Limits = field(default_factory=Limits)
    initial_state: Json = None
    """Where a task says nothing of this server."""
    state: StateSource = "opaque"
    """declared: the server tells its state (native runtime). `FileState`: it is read from files. opaque: keyed by the
    log of its calls. stateless: none."""
    wire: Literal["auto", "legacy", "2026-07-28"] = "auto"
    """Which MCP wire to speak; a pinned one saves the negotiation's round trip."""
    fork: Forkable | None = None
    """None: a process is started for every episode. Else one is forked, where something keeps a template (`warmed`).

    Only for single-threaded programs that run no code of the model's; first-party ones may signal no other process,
    third-party ones (`gymcp.mcp_servers.forkserver.python_scripts`) are checked after they are imported. A forked
    server has a sandbox of its own too, with two things weaker: the program is imported once for all episodes, in the
    outer sandbox alone, where the filter for third-party programs still allows namespaces and mounts; and all episodes
    share one memory layout. A first-party one may call ``setns``, too, for which it holds no namespace but its own."""
    spares: int = 0
    """How many to start ahead of their episodes, where something keeps them (`warmed`): for slow starters."""
    start_timeout_s: float = 20.0
    """From the start of the process to its answer with the tool list."""
    tools_sha256: str | None = None
    """What the tools must hash to (`tool_hashes.hash_of_tools`); None: whatever the server lists."""

    def parts(self) -> list[Json]:
        """What its fresh world and its tools depend on, as JSON.

        A native server's program is in a folder named after its content, so its path says what it is.
        """
        mounts = [[str(mount.source), str(mount.target), mount.writable] for mount in self.mounts]
        argv = [self._unfilled(word) for word in self.argv]
        env = {name: self._unfilled(value) for name, value in self.env.items()}
        found = [self.name, argv, env, mounts, self.network, repr(self.state)]
        return [*found, *([repr(self.http)] if self.http else [])]

    def _unfilled(self, text: str) -> str:
        """With the names of variables in the place of their values."""
        for value, name in self.secrets.items():
            text = text.replace(value, name)
        return text

    def launch(self) -> Launch:
        """The server's process, in a sandbox that is yet to be chosen."""
        return Launch(
            argv=self.argv,
            image=self.image,
            env=self.env,
            mounts=self.mounts,
            network=self.network,
            limits=self.limits,
            fork=self.fork,
            warm_pool_size=self.spares,
            secrets=self.secrets,
        )
