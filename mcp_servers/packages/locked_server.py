"""Servers of a lock as `ServerSpec`s, and what they list when they are started in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError, EnvInfraError, IntegrityError
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import warmed
from gymcp.mcp_servers.packages import image
from gymcp.mcp_servers.packages.commands import Wanted, parse_command
from gymcp.mcp_servers.packages.install import (
    INSIDE,
    is_present,
    resolve,
    start_words,
    verified,
    verify_installed,
    with_tree,
)
from gymcp.mcp_servers.packages.lockfile import DEFAULT, LockedServer, locked
from gymcp.mcp_servers.redaction import secrets_in
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox
from gymcp.mcp_servers.sandbox.bubblewrap import Bubblewrap
from gymcp.mcp_servers.sandbox.users.identity import why_no_own_user
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import HttpPort, ServerSpec, StateSource
from gymcp.mcp_servers.tools.hashes import differences, hash_tools
from gymcp.mcp_servers.variables import substitute_variables
from gymcp.types import Tool

START_TIMEOUT_S = 60.0
"""Of a server with the slow import of a full SDK, on a machine that starts many at a time."""
SPARES = 4
"""Of a server that is not forked. One of node takes some 50 MB."""
log = logging.getLogger(__name__)
_SETTINGS = {
    "python": {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
    "node": {"NODE_ENV": "production", "NO_UPDATE_NOTIFIER": "1"},
}


def locked_server(
    name: str,
    *,
    lock: Path | str = DEFAULT,
    args: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    mounts: Sequence[Mount] = (),
    state: StateSource = "opaque",
    limits: Limits | None = None,
    cassette: Path | None = None,
    runs_code: bool = False,
) -> ServerSpec:
    """A server of a lock, installed where it is not yet; a session with it refuses other tools than the locked ones.

    `args` replaces the locked arguments (tools are then not compared: what a server lists may depend on them), `env`
    adds to its environment, `runs_code` says that it executes what a model wrote, whatever the lock says: such a server
    is never forked (`ServerSpec.fork`); `cassette` is for one that runs elsewhere. Raises ConfigError for a name that
    the lock does not have or an environment variable that is not set, UsageError where it cannot be installed,
    IntegrityError where what is fetched or installed is not what was locked.
    """
    entry = locked(Path(lock), name)
    if entry.runtime == "remote":
        if given := [what for what, value in (("args", args), ("env", env), ("mounts", mounts)) if value]:
            raise ConfigError(f"server '{name}': runs elsewhere: it takes no {given[0]}")
        return _remote_spec(entry, state, limits or Limits(), cassette)
    if cassette is not None:
        raise ConfigError(f"server '{name}': runs here, so it needs no cassette")
    if runs_code:
        entry = replace(entry, runs_code=True)
    return spec_of(entry, args=args, env=env, mounts=mounts, state=state, limits=limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class FromLock:
    """The server of an environment that has one, by its name in a lock: `EnvSpec.servers` and `EnvSpec.installed`."""

    name: str
    lock: Path
    state: StateSource = "opaque"
    env: Mapping[str, str] = field(default_factory=dict)

    def servers(self) -> tuple[ServerSpec, ...]:
        return (locked_server(self.name, lock=self.lock, state=self.state, env=self.env),)

    def is_installed(self) -> bool:
        return is_installed(self.name, lock=self.lock)


def is_installed(name: str, *, lock: Path | str = DEFAULT) -> bool:
    """True where this machine has the server as it is locked. Raises ConfigError for a name that the lock lacks."""
    return is_present(locked(Path(lock), name))


def spec_of(
    server: LockedServer,
    *,
    args: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    mounts: Sequence[Mount] = (),
    state: StateSource = "opaque",
    limits: Limits | None = None,
) -> ServerSpec:
    """`locked_server` of an entry at hand; one that runs elsewhere is called live."""
    if server.runtime == "remote":
        return _remote_spec(server, "stateless", limits or Limits(), None)
    own_args = parse_command(server.command, name=server.name).args
    texts = {"args": own_args if args is None else tuple(args), "env": tuple({**server.env, **(env or {})}.values())}
    try:
        filled = {
            part: tuple(substitute_variables(text, os.environ) for text in of_part) for part, of_part in texts.items()
        }
    except KeyError as error:
        raise ConfigError(
            f"server '{server.name}': start: environment variable {error} is not set; its lock entry refers to it"
        ) from error
    names = ({**server.env, **(env or {})}).keys()
    told = [*zip(names, texts["env"], strict=True), *(("argument", text) for text in texts["args"])]
    same = args is None or tuple(args) == own_args
    if server.runtime == "image":
        found, argv = image.launch_words(server, filled["args"])
        folder: tuple[Mount, ...] = ()
    else:
        folder = (Mount(source=verified(server), target=PurePosixPath(INSIDE)),)
        found, argv = None, (*start_words(server), *filled["args"])
    may_fork = server.runtime == "python" and not server.http and not server.runs_code and server.forks is not False
    return ServerSpec(
        name=server.name,
        argv=argv,
        image=found,
        env={**_SETTINGS.get(server.runtime, {}), **dict(zip(names, filled["env"], strict=True))},
        secrets=secrets_in(f"server '{server.name}'", told),
        mounts=(*folder, *mounts),
        limits=limits or Limits(),
        state=state,
        http=HttpPort.parse(server.http) if server.http else None,
        wire="legacy" if server.runtime == "python" and server.sdk_major == 1 else "auto",
        fork=forkable_script(argv) if may_fork else None,
        spares=SPARES,
        start_timeout_s=START_TIMEOUT_S,
        tools_sha256=server.tools_sha256 if server.tools and same else None,
    )


def _remote_spec(server: LockedServer, state: StateSource, limits: Limits, cassette: Path | None) -> ServerSpec:
    return ServerSpec(
        name=server.name,
        url=server.command[0],
        headers=server.headers,
        state=state,
        limits=limits,
        cassette=cassette,
        start_timeout_s=START_TIMEOUT_S,
        tools_sha256=server.tools_sha256 if server.tools else None,
    )


def lock_server(wanted: Wanted, sandbox: Sandbox, *, runs_code: bool = False) -> LockedServer:
    """Resolves, installs, starts and lists: the whole entry. Raises what each does, naming server and stage.

    Of one that runs elsewhere only the tools can be locked. What an image was built or pulled for in vain is removed.
    """
    with image.removed_if_refused(wanted) if wanted.runtime == "image" else contextlib.nullcontext():
        return _lock_server(wanted, sandbox, runs_code=runs_code)


def _lock_server(wanted: Wanted, sandbox: Sandbox, *, runs_code: bool) -> LockedServer:
    if wanted.runtime == "remote":
        command = wanted.command("")
        server = LockedServer(
            name=wanted.name,
            runtime="remote",
            package=wanted.package,
            version="",
            command=command,
            headers=wanted.headers,
        )
    else:
        if wanted.http:
            HttpPort.parse(wanted.http)  # said before anything is fetched
        server = replace(with_tree(replace(resolve(wanted), http=wanted.http)), runs_code=runs_code)
    spec = spec_of(server)
    tools = list_tools(spec, sandbox)
    server = replace(server, tools=hash_tools(tools))
    why_not_here = why_no_own_user()  # a reason of this machine's is none for the lock
    if spec.fork is None or not isinstance(sandbox, Bubblewrap) or why_not_here:
        return server
    return replace(server, forks=_can_be_forked(spec, sandbox, tools))


def how_it_starts(server: LockedServer) -> str:
    """For each episode, under bubblewrap."""
    if server.runs_code:
        return "a new process: it runs code of the model's"
    if server.runtime == "remote":
        return "elsewhere"
    if server.runtime != "python" or server.http:
        return "a process started ahead"
    return {True: "forked", False: "a process started ahead", None: "forked, if its first start shows that it can be"}[
        server.forks
    ]


def _can_be_forked(spec: ServerSpec, sandbox: Bubblewrap, tools: tuple[Tool, ...]) -> bool:
    """Whether a forked server lists the same tools as the started one did; says why not as a warning."""

    async def tried() -> bool:
        async with warmed(sandbox) as warm, open_session(spec, warm, initial_state=None, seed=0) as session:
            return isinstance(session.process, ForkedProcess) and session.tools == tools

    try:
        return asyncio.run(tried())
    except EnvInfraError as error:
        log.warning("%s: every server is started anew instead: %s", sandbox.name, error)
        return False


def wanted_again(server: LockedServer) -> Wanted:
    """What a lock entry was made from: the same version, and what was built may be built again."""
    wanted = parse_command(
        server.command, name=server.name, env=server.env, http=server.http, headers=server.headers, base=server.base
    )
    built = (p.name.rpartition("node_modules/")[2] for p in server.packages if p.build is not None)
    return replace(wanted, build=tuple(dict.fromkeys(built)))


def check_server(server: LockedServer, sandbox: Sandbox) -> tuple[Tool, ...]:
    """The tools, where files, version and tools are as locked. Raises IntegrityError, naming the difference."""
    if server.runtime != "remote":
        verify_installed(server)
    tools = list_tools(replace(spec_of(server), tools_sha256=None), sandbox)
    if found := list(differences(server.tools, hash_tools(tools))):
        raise IntegrityError(
            f"server '{server.name}': list: its tools are not the locked ones: {'; '.join(found)}; to accept that run: "
            f"gymcp servers lock {server.name}"
        )
    return tools


def list_tools(spec: ServerSpec, sandbox: Sandbox) -> tuple[Tool, ...]:
    """Starts the server once. Raises EnvInfraError, naming the stage that failed."""

    async def listed() -> tuple[Tool, ...]:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            return session.tools

    return asyncio.run(listed())
