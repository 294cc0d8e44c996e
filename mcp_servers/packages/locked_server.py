"""Turn lock entries into `ServerSpec`s, and make and check the entries by starting the servers in a sandbox."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath

from gymcp.errors import ConfigError, EnvInfraError, IntegrityError
from gymcp.mcp_servers.forkserver.process import ForkedProcess
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.packages import image, python
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install import (
    INSIDE,
    ensure_verified,
    is_present,
    resolve,
    start_words,
    verify_installed,
    with_tree,
)
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK, LockedServer, read_locked_server
from gymcp.mcp_servers.packages.own_source.source import SOURCE, mount_source, own_start_words
from gymcp.mcp_servers.packages.pythons.choice import interpreter_for
from gymcp.mcp_servers.redaction import secrets_in
from gymcp.mcp_servers.sandbox import Limits, Mount, Sandbox
from gymcp.mcp_servers.sandbox.users.identity import why_no_own_user
from gymcp.mcp_servers.services import Service
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import HttpPort, ServerSpec, StateSource
from gymcp.mcp_servers.tools.hashes import differences, hash_tools
from gymcp.mcp_servers.variables import substitute_variables
from gymcp.types import Tool

START_TIMEOUT_S = 60.0
"""Seconds in which a third-party server must start: a full SDK imports slowly, and many servers start at a time."""
WARM_POOL_SIZE = 4
"""Processes that are started ahead for a server that is not forked. A Node process takes about 50 MB."""
_MISFIT = re.compile(r"\b(Attribute|Import|ModuleNotFound|Name|Type)Error\b")
"""Exceptions with which a server ends if a package has another interface than the server was written for."""
log = logging.getLogger(__name__)
_SETTINGS = {
    "python": {"PYTHONHASHSEED": "0", "PYTHONUTF8": "1"},
    "node": {"NODE_ENV": "production", "NO_UPDATE_NOTIFIER": "1"},
}


def locked_server(
    name: str,
    *,
    lock: Path | str = DEFAULT_LOCK,
    args: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    mounts: Sequence[Mount] = (),
    state: StateSource = "opaque",
    limits: Limits | None = None,
    cassette: Path | None = None,
    runs_code: bool = False,
) -> ServerSpec:
    """Server of a lock, which is installed if it is missing. Its sessions refuse any tools but the locked ones.

    `args` replaces the locked arguments; the tools are then not compared, because they may depend on the arguments.
    `env` adds to the server's environment. `runs_code` states that the server executes code written by a model,
    whatever the lock says; such a server is never forked (`ServerSpec.fork`). `cassette` is for a remote server.
    Raises ConfigError for a name that the lock does not have or an environment variable that is not set, UsageError if
    the server cannot be installed, IntegrityError if the fetched or installed files are not the locked ones.
    """
    entry = read_locked_server(Path(lock), name)
    if entry.runtime == "remote":
        if given := [what for what, value in (("args", args), ("env", env), ("mounts", mounts)) if value]:
            raise ConfigError(f"server '{name}': runs elsewhere: it takes no {given[0]}")
        return _remote_spec(entry, state, limits or Limits(), cassette)
    if cassette is not None:
        raise ConfigError(f"server '{name}': runs here, so it needs no cassette")
    if runs_code:
        entry = replace(entry, runs_code=True)
    return make_spec(entry, args=args, env=env, mounts=mounts, state=state, limits=limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedServerRef:
    """Reference to one server of a lock, for an environment's `EnvSpec.servers` and `EnvSpec.installed`."""

    name: str
    lock: Path
    state: StateSource = "opaque"
    env: Mapping[str, str] = field(default_factory=dict)

    def servers(self) -> tuple[ServerSpec, ...]:
        return (locked_server(self.name, lock=self.lock, state=self.state, env=self.env),)

    def is_installed(self) -> bool:
        return is_installed(self.name, lock=self.lock)


def is_installed(name: str, *, lock: Path | str = DEFAULT_LOCK) -> bool:
    """True if this machine has the locked server. Raises ConfigError for a name that the lock lacks."""
    return is_present(read_locked_server(Path(lock), name))


def make_spec(
    server: LockedServer,
    *,
    args: Sequence[str] | None = None,
    env: Mapping[str, str] | None = None,
    mounts: Sequence[Mount] = (),
    state: StateSource = "opaque",
    limits: Limits | None = None,
) -> ServerSpec:
    """`locked_server` for a given lock entry. A remote server is called live."""
    if server.runtime == "remote":
        return _remote_spec(server, "stateless", limits or Limits(), None)
    if server.runtime == "native":
        raise ConfigError(
            f"server '{server.name}': locked are the packages of a native server: write native_server('{server.name}',"
            f" CLASS, packages=locked_packages('{server.name}', ...))"
        )
    own_args = to_install_request(server).args
    texts = {"args": own_args if args is None else tuple(args), "env": tuple({**server.env, **(env or {})}.values())}
    try:
        values = {part: tuple(substitute_variables(text, os.environ) for text in own) for part, own in texts.items()}
    except KeyError as error:
        raise ConfigError(
            f"server '{server.name}': start: environment variable {error} is not set; its lock entry refers to it"
        ) from error
    names = ({**server.env, **(env or {})}).keys()
    labelled = [*zip(names, texts["env"], strict=True), *(("argument", text) for text in texts["args"])]
    has_locked_args = args is None or tuple(args) == own_args
    start = _find_start(server, values["args"])
    may_fork = server.runtime == "python" and not server.http and not server.services and not server.runs_code
    may_fork = may_fork and server.forks is not False
    return ServerSpec(
        name=server.name,
        argv=start.argv,
        image=start.image,
        env={**_SETTINGS.get(server.runtime, {}), **start.env, **dict(zip(names, values["env"], strict=True))},
        secrets=secrets_in(f"server '{server.name}'", labelled),
        mounts=(*start.mounts, *mounts),
        services=tuple(replace(each, argv=_service_argv(server, start, each)) for each in server.services),
        python=interpreter_for(f"server '{server.name}': start", server.python_version)
        if server.python_version
        else None,
        limits=limits or Limits(),
        state=state,
        http=HttpPort.parse(server.http) if server.http else None,
        wire="legacy" if server.runtime == "python" and server.sdk_major == 1 else "auto",
        fork=forkable_script(start.argv) if may_fork else None,
        warm_pool_size=WARM_POOL_SIZE,
        start_timeout_s=START_TIMEOUT_S,
        tools_sha256=server.tools_sha256 if server.tools and has_locked_args and not start.dev_source else None,
        dev_source=start.dev_source,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """The start of a server in its sandbox."""

    argv: tuple[str, ...]
    image: str | None = None
    mounts: tuple[Mount, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    dev_source: str = ""
    """See `ServerSpec.dev_source`."""


def _find_start(server: LockedServer, args: tuple[str, ...]) -> _Start:
    """Command and mounts of a server that runs here, which is installed and verified. Raises UsageError."""
    if server.runtime == "image":
        name, argv = image.launch_words(server, args)
        return _Start(argv=argv, image=name)
    packages = Mount(source=ensure_verified(server), target=PurePosixPath(INSIDE))
    if server.source is None:
        return _Start(argv=(*start_words(server), *args), mounts=(packages,))
    source, mount = mount_source(server, to_install_request(server))
    if server.source.dev:
        _warn_of_dev(server.name, source.sha256)
    return _Start(
        argv=(*own_start_words(source), *args),
        mounts=(packages, mount),
        env={"PYTHONPATH": ":".join(source.import_paths)} if source.import_paths else {},
        dev_source=source.sha256 if server.source.dev else "",
    )


def _service_argv(server: LockedServer, start: _Start, service: Service) -> tuple[str, ...]:
    """Command of a service: a file of the source, a program of the packages, or one of the system.

    Raises ConfigError for a file that is not in the copy of the source.
    """
    program, *words = service.argv
    if server.runtime != "python":
        return service.argv
    interpreter = (start.argv[0], "-s", "-B")
    if program in ("python", "python3"):
        if server.source is None or not words or not words[0].endswith(".py"):
            return (*interpreter, *words)
        name = str(PurePosixPath(words[0]))
        if name not in server.source.files:
            raise ConfigError(
                f"server '{server.name}': service '{service.name}': '{name}' is not in the copy of the source; "
                f"add it: --include {name}"
            )
        return (*interpreter, str(SOURCE / name), *words[1:])
    script = ensure_verified(server) / "venv" / "bin" / program
    inside = str(PurePosixPath(INSIDE) / "venv" / "bin" / program)
    if "/" in program or not script.is_file():
        return service.argv
    return (inside, *words) if python.is_native_program(script) else (*interpreter, inside, *words)


@functools.cache
def _warn_of_dev(name: str, sha256: str) -> None:
    log.warning("server '%s': --dev: its source runs as it is now (%s), and was not compared", name, sha256[:12])


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


def lock_server(request: InstallRequest, sandbox: Sandbox, *, runs_code: bool = False) -> LockedServer:
    """Resolve, install, start and list a server; return its complete lock entry.

    Raises the errors of each stage, naming server and stage. For a remote server only the tools can be locked. An image
    that was built or pulled for a server that is then refused is removed again.
    """
    with image.remove_if_refused(request) if request.runtime == "image" else contextlib.nullcontext():
        return _lock_server(request, sandbox, runs_code=runs_code)


def _lock_server(request: InstallRequest, sandbox: Sandbox, *, runs_code: bool) -> LockedServer:
    if request.runtime == "remote":
        command = request.command("")
        server = LockedServer(
            name=request.name,
            runtime="remote",
            package=request.package,
            version="",
            command=command,
            headers=request.headers,
        )
    else:
        if request.http:
            HttpPort.parse(request.http)  # raises before anything is fetched
        server = _install(request, runs_code=runs_code)
    if server.runtime == "native":
        return server  # its tools are in the environment's file, which is reviewed itself
    server, tools = _list_with_fallbacks(server, request, sandbox)
    spec = make_spec(server)
    server = replace(server, tools=hash_tools(tools))
    why_not_here = why_no_own_user()  # a reason that holds for this machine only does not belong into the lock
    if spec.fork is None or not sandbox.can_fork or why_not_here:
        return server
    return replace(server, forks=_try_fork(spec, sandbox, tools))


def _install(request: InstallRequest, *, runs_code: bool) -> LockedServer:
    """Lock entry of the installed server, without tools."""
    server = replace(resolve(request), http=request.http, services=request.services)
    return replace(with_tree(server), runs_code=runs_code)


def _list_with_fallbacks(
    server: LockedServer, request: InstallRequest, sandbox: Sandbox
) -> tuple[LockedServer, tuple[Tool, ...]]:
    """(server, its tools); a Python server that its packages do not fit is tried again with older ones.

    Raises the error of the first start if none of the others succeeds.
    """
    try:
        return server, list_tools(make_spec(server), sandbox)
    except EnvInfraError as error:
        if not _MISFIT.search(str(error)):
            raise
        tried = [server.packages]
        for older, words in find_fallbacks(server, request):
            with contextlib.suppress(ConfigError, EnvInfraError):
                candidate = _install(older, runs_code=server.runs_code)
                if candidate.packages in tried:
                    continue
                tried.append(candidate.packages)
                tools = list_tools(make_spec(candidate), sandbox)
                log.warning("server '%s': does not start with the newest packages; locked with %s", server.name, words)
                return candidate, tools
        raise error from error.__cause__


def find_fallbacks(server: LockedServer, request: InstallRequest) -> Iterator[tuple[InstallRequest, str]]:
    """(request with older packages, these packages in words) for a Python server that does not start.

    First the packages of the day on which the server was published, then the MCP library before its version 2.
    """
    if server.runtime != "python" or request.constraints or request.until:
        return
    if request.own is None and (day := python.find_release_day(request, server.version)):
        yield replace(request, until=day), f"those that the index had at {day}, when it was published"
    if (server.sdk_major or 0) >= 2:
        yield replace(request, constraints=("mcp<2",)), "mcp<2"


def describe_start(server: LockedServer) -> str:
    """Way in which the server starts for each episode under bubblewrap, in words."""
    if server.runs_code:
        return "a new process: it runs code of the model's"
    if server.runtime == "remote":
        return "elsewhere"
    if server.runtime == "native":
        return "as declared"
    if server.runtime != "python" or server.http or server.services:
        return "a process started ahead"
    return {True: "forked", False: "a process started ahead", None: "forked, if its first start shows that it can be"}[
        server.forks
    ]


def _try_fork(spec: ServerSpec, sandbox: Sandbox, tools: tuple[Tool, ...]) -> bool:
    """True if a forked server lists the same tools as the started one did. Logs a warning if it cannot be forked."""

    async def lists_same_tools() -> bool:
        async with open_warm_sandbox(sandbox) as warm, open_session(spec, warm, initial_state=None, seed=0) as session:
            return isinstance(session.process, ForkedProcess) and session.tools == tools

    try:
        return asyncio.run(lists_same_tools())
    except EnvInfraError as error:
        log.warning("%s: every server is started anew instead: %s", sandbox.name, error)
        return False


def to_install_request(server: LockedServer) -> InstallRequest:
    """Request for the version that is locked; packages that were built may be built again."""
    request = parse_command(
        server.command, name=server.name, env=server.env, http=server.http, headers=server.headers, base=server.base
    )
    source = server.source
    request = replace(
        request,
        constraints=server.constraints,
        until=server.until,
        python=server.python_version,
        services=server.services,
        include=source.include if source is not None else (),
        dev=source is not None and source.dev,
    )
    built = (p.name.rpartition("node_modules/")[2] for p in server.packages if p.build is not None)
    return replace(request, build=tuple(dict.fromkeys(built)))


def check_server(server: LockedServer, sandbox: Sandbox) -> tuple[Tool, ...]:
    """Tools of the server, after its files, version and tools were compared with the lock.

    Raises IntegrityError, naming the difference.
    """
    if server.runtime != "remote":
        verify_installed(server)
    if server.runtime == "native":
        return ()
    tools = list_tools(replace(make_spec(server), tools_sha256=None), sandbox)
    if changes := list(differences(server.tools, hash_tools(tools))):
        raise IntegrityError(
            f"server '{server.name}': list: its tools are not the locked ones: {'; '.join(changes)}; to accept that "
            f"run: {server.lock_command}"
        )
    return tools


def list_tools(spec: ServerSpec, sandbox: Sandbox) -> tuple[Tool, ...]:
    """Start the server once and return its tools. Raises EnvInfraError, naming the stage that failed."""

    async def start_and_list() -> tuple[Tool, ...]:
        async with open_session(spec, sandbox, initial_state=None, seed=0) as session:
            return session.tools

    return asyncio.run(start_and_list())
