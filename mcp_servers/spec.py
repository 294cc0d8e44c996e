"""The description of a server: how to run it, and how the harness knows its state."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from gymcp.errors import ConfigError
from gymcp.mcp_servers.file_state import DigestLimits, FileReader, FileState, Mask
from gymcp.mcp_servers.sandbox.interpreter import Interpreter
from gymcp.mcp_servers.sandbox.spec import Forkable, Image, Launch, Limits, Mount
from gymcp.mcp_servers.services import Service
from gymcp.types import Json

__all__ = ["DigestLimits", "FileReader", "FileState", "HttpPort", "Mask", "ServerSpec", "Service", "StateSource"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpPort:
    """Port and path of a server that speaks only streamable HTTP, on the loopback of its own sandbox."""

    port: int
    path: str = "/mcp"

    @classmethod
    def parse(cls, text: str) -> HttpPort:
        """Parse ``3000`` or ``3000/mcp``. Raises ConfigError."""
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
    """Command inside the sandbox; ``python3`` is the sandbox's own interpreter. Empty: the image's command."""
    image: Image = None
    """Name of an image, or path of a Dockerfile; the server then runs under the docker sandbox only. None: any
    sandbox."""
    env: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    python: Interpreter | None = None
    """Interpreter that the server's command uses beside the sandbox's own. None: it uses no other."""
    network: bool = False
    http: HttpPort | None = None
    """Port of a server that speaks only HTTP (`gymcp.mcp_servers.transports.http_bridge` carries its messages). None:
    the server speaks over standard input and output."""
    services: tuple[Service, ...] = ()
    """Processes beside the server in its sandbox. A server with services is never forked, and snapshots of it are
    restored by replaying its calls."""
    url: str | None = None
    """URL of a remote server: nothing is started, and only a stateless one may be called without a cassette.
    ``${NAME}`` stands for an environment variable, here and in `headers`."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers of every request to `url`."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """``${NAME}`` by value, for the environment variables that were filled in in `env` and `argv`.

    These values, and those of variables in `url` and `headers`, are replaced in everything that the server sends before
    any other component sees it (`gymcp.mcp_servers.redaction`): messages, standard error, errors. So no lock, cassette,
    run, log or prompt holds a value because a server has repeated it, as it is or in a common encoding. Not found:
    values below 8 characters (refused, if they are secrets by name), pieces, other transformations, and values that a
    server writes into its files."""
    cassette: Path | None = None
    """Recording of `url` that is replayed instead of calling it (`gymcp.mcp_servers.transports.cassette`)."""
    recording: bool = False
    """Call `url`, and add new answers to the cassette."""
    limits: Limits = field(default_factory=Limits)
    initial_state: Json = None
    """Initial state for tasks that give this server none."""
    state: StateSource = "opaque"
    """declared: the server sends its state (native runtime). `FileState`: the state is read from files. opaque: it
    cannot be seen, and the log of calls is its key. stateless: there is none."""
    wire: Literal["auto", "legacy", "2026-07-28"] = "auto"
    """Version of the MCP wire format. A fixed one saves the round trip of the negotiation."""
    fork: Forkable | None = None
    """Program to import once and fork for every episode, in a sandbox of `open_warm_sandbox`. None: a process is
    started for every episode.

    Only for single-threaded programs that run no code of the model's. First-party programs must not signal other
    processes; third-party ones (`gymcp.mcp_servers.forkserver.python_scripts`) are checked after they are imported. A
    forked server has a sandbox of its own, too, which is weaker in two points. The program is imported once for all
    episodes, in the outer sandbox alone, in which the filter for third-party programs still allows namespaces and
    mounts. And all episodes share one memory layout. A first-party server may also call ``setns``, but it holds no
    namespace other than its own."""
    warm_pool_size: int = 0
    """Servers to start ahead of their episodes, in a sandbox of `open_warm_sandbox`: for servers that start slowly."""
    start_timeout_s: float = 20.0
    """Seconds from the start of the process, once its services are ready, to its answer with the tool list."""
    tools_sha256: str | None = None
    """Required hash of the tools (`tools.hashes.combine_hashes`). None: any tools."""
    dev_source: str = ""
    """sha256 of a source of the user's own that is run as it is now, because it was locked with ``--dev``. Empty: the
    server's code was compared with its lock, or it has none."""

    @property
    def is_stateless(self) -> bool:
        """True if no call changes what later calls answer, in whatever episode."""
        return self.state == "stateless"

    @property
    def shows_state(self) -> bool:
        """True if the harness can see the server's state, and so compare a fresh one with its baseline."""
        return self.state == "declared" or isinstance(self.state, FileState)

    @property
    def opening_timeout_s(self) -> float:
        """Seconds in which the server must answer while it starts: the time of its services, and its own."""
        return self.start_timeout_s + sum(service.ready_timeout_s for service in self.services)

    def parts(self) -> list[Json]:
        """Everything that the server's fresh state and its tools depend on, as JSON.

        A native server's program is in a folder named after its content, so its path identifies it.
        """
        mounts = [[str(mount.source), str(mount.target), mount.writable] for mount in self.mounts]
        argv = [self._restore_variables(word) for word in self.argv]
        env = {name: self._restore_variables(value) for name, value in self.env.items()}
        parts = [self.name, argv, env, mounts, self.network, repr(self.state)]
        parts += [repr(self.http)] if self.http else []
        parts += [repr(self.services)] if self.services else []
        return [*parts, *([list(self.python.version)] if self.python else [])]

    def _restore_variables(self, text: str) -> str:
        """The text with the names of variables in place of their values."""
        for value, name in self.secrets.items():
            text = text.replace(value, name)
        return text

    def launch(self) -> Launch:
        """Launch of the server's process, for any sandbox."""
        return Launch(
            argv=self.argv,
            image=self.image,
            env=self.env,
            mounts=(*self.mounts, *(self.python.show() if self.python else ())),
            network=self.network,
            limits=self.limits,
            fork=self.fork,
            warm_pool_size=self.warm_pool_size,
            secrets=self.secrets,
        )
