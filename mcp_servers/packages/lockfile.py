"""`servers.lock`: the exact files of every server, and the tools that each had when it was locked.

The format is TOML, made for review: no addresses, one line per file with its hash, secrets only as ``${NAME}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError, IntegrityError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.packages.lock_grammar import check_needs, check_package, check_server, text
from gymcp.mcp_servers.services import Service
from gymcp.mcp_servers.tools.hashes import ToolHashes, combine_hashes
from gymcp.paths import gymcp_home
from gymcp.types import Json
from gymcp.visible_text import one_line

FORMAT = 1
DEFAULT_LOCK = Path("servers.lock")
Runtime = Literal["python", "node", "image", "remote", "native"]
"""remote: the server runs on another machine. Its command is its URL, and it has no packages. native: Python packages
that a server on gymcp's own runtime imports (`native_packages`); its tools are in the environment's file."""
_RUNTIMES = get_args(Runtime)
MAX_NAME_CHARS = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME_CHARS - 1}}}")
MAX_LOCK_CHARACTERS = 64_000_000
_REGISTRY = "locks"
_HEADING = (
    "# Written by `gymcp servers`. Read it in review; change it with `gymcp servers add` and `gymcp servers lock`.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One package of a server's closure. The server's own package is one of them."""

    name: str
    """Name of the package. Node: its folder below the root, such as ``node_modules/a/node_modules/b``."""
    version: str
    files: Mapping[str, str]
    """Hashes with their algorithm, by name. Node: ``integrity``. Python: every wheel for Linux by file name. Image:
    ``id`` and, if a registry has it, ``digest``. Dockerfile: ``context``."""
    marker: str = ""
    """Python: marker of the machines that need the package. Empty: all of them."""
    needs: tuple[str, ...] = ()
    """Node: names of the packages that it requires."""
    build: tuple[LockedPackage, ...] | None = None
    """None: no code of the package runs when it is installed. Otherwise it is built in a sandbox. Python: from its
    source, which is then its only file, with these packages. Node: by its own scripts."""


def content_of(package: LockedPackage) -> list[Json]:
    """Everything that determines the installed files of the package, as JSON."""
    row: list[Json] = [package.name, package.version, package.marker, list(package.needs), dict(package.files)]
    return row if package.build is None else [*row, [content_of(needed) for needed in package.build]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedSource:
    """Source of the user's own, beside the packages that it needs."""

    files: Mapping[str, str]
    """sha256 by path below the source's folder, for every file that the server sees."""
    requires: tuple[str, ...] = ()
    """Requirements that the source's own metadata named."""
    include: tuple[str, ...] = ()
    """Files and folders that the user added to the code."""
    dev: bool = False
    """True: the source is run as it is at the start of a run, and its tools are not compared."""

    @property
    def sha256(self) -> str:
        """One hash over all files."""
        return digest(dict(self.files))


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedServer:
    name: str
    runtime: Runtime
    package: str
    version: str
    command: tuple[str, ...]
    """Command line with the exact version, as a person would write it. ``${NAME}`` stands for an environment variable.
    Paths, of a Dockerfile or of a source of the user's own, are relative to the lock's folder."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Environment. Variables in its values, ``${NAME}``, are filled in when the server starts and never written
    down."""
    http: str = ""
    """PORT/PATH at which the server listens inside the sandbox. Empty: it speaks over standard input and output."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """HTTP headers for a remote server, with secrets only as ``${NAME}``."""
    sdk_major: int | None = None
    """Major version of the MCP library in the closure; None if the closure has none."""
    python: str = ""
    """Specifier of the Python versions that the closure was resolved for."""
    python_version: str = ""
    """Minor version of the interpreter that was chosen for the server, such as 3.12. Empty: the sandbox's own."""
    runs_code: bool = False
    """True if the server executes code written by a model. Then every episode gets a newly started process, never a
    forked one."""
    forks: bool | None = None
    """Python: True if the server could be forked when it was locked. None: not tried; its first start will show it."""
    constraints: tuple[str, ...] = ()
    """Python: requirements that limited the versions of the closure."""
    until: str = ""
    """Python: time after which the index got files that the closure leaves out. Empty: none were left out."""
    services: tuple[Service, ...] = ()
    """Processes beside the server in its sandbox. A service that is a program of the system is not locked by a hash."""
    source: LockedSource | None = None
    """Source of the user's own; None: the server's code is in its packages."""
    packages: tuple[LockedPackage, ...] = ()
    trees: Mapping[str, str] = field(default_factory=dict)
    """Digest of all installed files by platform, for the platforms on which the server was locked."""
    tools: Mapping[str, ToolHashes] = field(default_factory=dict)
    base: Path = field(default=Path(), compare=False)
    """Folder of the lock, to which its paths are relative. It is not written to the lock."""
    file: Path = field(default=DEFAULT_LOCK, compare=False)
    """The lock, for messages. It is not written to the lock."""

    @property
    def tools_sha256(self) -> str:
        """One hash over all tools. The order of tools and keys does not matter."""
        return combine_hashes(self.tools)

    @property
    def lock_command(self) -> str:
        """Command that locks the server again, for messages."""
        return f"gymcp servers lock {self.name}{name_lock(self.file)}"


def name_lock(path: Path) -> str:
    """The option that names the lock to `gymcp servers`; empty for the one of the working folder."""
    path, here = path.absolute(), Path.cwd()
    if path == here / DEFAULT_LOCK:
        return ""
    return f" --lock {shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))}"


def read_lock(path: Path, *, consistent: bool = True) -> dict[str, LockedServer]:
    """Servers by name. Raises ConfigError for a file that is missing, malformed, or of a newer format.

    `consistent`: also raise IntegrityError if the recorded hash of a server's tools does not match the recorded tools.
    """
    try:
        with path.open(encoding="utf-8") as file:
            content_text = file.read(MAX_LOCK_CHARACTERS + 1)
    except FileNotFoundError:
        command = f"gymcp servers add 'uvx PACKAGE==VERSION'{name_lock(path)}"
        raise ConfigError(f"lock '{path}': not found; make it with: {command}") from None
    except OSError as error:
        raise ConfigError(f"lock '{path}': cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"lock '{path}': is not UTF-8 text: {error}") from error
    if len(content_text) > MAX_LOCK_CHARACTERS:
        raise ConfigError(f"lock '{path}': is longer than {MAX_LOCK_CHARACTERS:,} characters")
    try:
        content = tomllib.loads(content_text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"lock '{path}': not TOML: {one_line(str(error))}") from error
    if content.get("format") != FORMAT:
        format_text = f"format {content['format']!r}" if "format" in content else "does not say its format"
        raise ConfigError(f"lock '{path}': {format_text}; this gymcp reads format {FORMAT}")
    servers: dict[str, LockedServer] = {}
    rows = content.get("server", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"lock '{path}': its servers must be tables, [[server]]")
    for number, row in enumerate(rows, 1):
        try:
            server = _from_row(row, path.absolute())
        except KeyError as error:
            raise ConfigError(f"lock '{path}': server {number}: has no {one_line(str(error))}") from error
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ConfigError(
                f"lock '{path}': server {number}: {type(error).__name__}: {one_line(str(error))}"
            ) from error
        if server.name in servers:
            raise ConfigError(f"lock '{path}': two servers are named '{server.name}'")
        who = f"lock '{path}': server '{server.name}'"
        wrong = ""
        if consistent and server.tools_sha256 != row.get("tools_sha256"):
            wrong = "tools_sha256 does not belong to its tools"
        elif consistent and server.source is not None and server.source.sha256 != row["source"].get("sha256"):
            wrong = "the hash of its source does not belong to its files"
        if wrong:
            raise IntegrityError(f"{who}: {wrong}: edited by hand, or merged badly; run: {server.lock_command}")
        servers[server.name] = server
    _remember(path.resolve(), gymcp_home() / _REGISTRY)
    return servers


def list_remembered_locks() -> list[Path]:
    """Every lock that was ever read with this cache. Some may no longer exist."""
    with contextlib.suppress(OSError):
        return [Path(line) for line in (gymcp_home() / _REGISTRY).read_text(encoding="utf-8").splitlines()]
    return []


@functools.cache
def _remember(lock: Path, registry: Path) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written holds no installed server either
        if lock not in list_remembered_locks():
            registry.parent.mkdir(parents=True, exist_ok=True)
            with registry.open("a", encoding="utf-8") as file:
                file.write(f"{lock}\n")


def write_lock(path: Path, servers: Mapping[str, LockedServer]) -> None:
    """Replace the file atomically: after a failure it is unchanged."""
    rows = [_to_row(servers[name]) for name in sorted(servers)]
    write_atomically(path, (_HEADING + tomli_w.dumps({"format": FORMAT, "server": rows})).encode())


@contextlib.contextmanager
def edit_lock(path: Path) -> Iterator[dict[str, LockedServer]]:
    """Servers of a lock, to be changed in place. The lock is written at the end; other editors wait until then."""
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        servers = read_lock(path, consistent=False) if path.exists() else {}
        yield servers
        write_lock(path, servers)
    finally:
        os.close(folder)


def read_locked_server(path: Path, name: str) -> LockedServer:
    """One server of a lock. Raises ConfigError, naming the servers that the lock has."""
    servers = read_lock(path)
    if name not in servers:
        raise ConfigError(f"lock '{path}': no server '{name}'; have {', '.join(servers) or 'none'}")
    return servers[name]


def check_name(name: str) -> str:
    """The name, if it is valid. It becomes part of a path, so anything else raises ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"server name {name!r}: letters, digits, - and _ only, at most {MAX_NAME_CHARS}; give another with"
            " --name (of gymcp new: --server-name)"
        )
    return name


def _to_row(server: LockedServer) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": server.name,
        "runtime": server.runtime,
        "package": server.package,
        "version": server.version,
        "command": list(server.command),
    }
    if server.python:
        row["python"] = server.python
    if server.python_version:
        row["python_version"] = server.python_version
    if server.sdk_major is not None:
        row["sdk_major"] = server.sdk_major
    if server.runs_code:
        row["runs_code"] = True
    if server.forks is not None:
        row["forks"] = server.forks
    row["tools_sha256"] = server.tools_sha256
    if server.env:
        row["env"] = dict(server.env)
    if server.http:
        row["http"] = server.http
    if server.headers:
        row["headers"] = dict(server.headers)
    if server.constraints:
        row["constraints"] = list(server.constraints)
    if server.until:
        row["until"] = server.until
    if server.services:
        row["services"] = [
            {"name": each.name, "command": list(each.argv), "ready": each.ready, "timeout_s": each.ready_timeout_s}
            for each in server.services
        ]
    if server.source is not None:
        row["source"] = _source_row(server.source)
    if server.trees:
        row["trees"] = dict(server.trees)
    row["packages"] = _package_rows(server.packages)
    row["tools"] = {name: hashes.to_row() for name, hashes in sorted(server.tools.items())}
    return row


def _source_row(source: LockedSource) -> dict[str, Any]:
    return (
        {"sha256": source.sha256}
        | ({"dev": True} if source.dev else {})
        | ({"requires": list(source.requires)} if source.requires else {})
        | ({"include": list(source.include)} if source.include else {})
        | {"files": dict(source.files)}
    )


def _package_rows(packages: tuple[LockedPackage, ...]) -> dict[str, Any]:
    return {
        f"{package.name}=={package.version}": ({"marker": package.marker} if package.marker else {})
        | ({"needs": list(package.needs)} if package.needs else {})
        | {"files": [f"{name} {digest}" for name, digest in package.files.items()]}
        | ({"build": _package_rows(package.build)} if package.build is not None else {})
        for package in packages
    }


def parse_packages(rows: Mapping[str, Any], runtime: str = "python") -> tuple[LockedPackage, ...]:
    """Packages from a lock's tables. Raises ValueError, naming the word that is malformed."""
    if not isinstance(rows, dict):
        raise ValueError(f"packages {rows!r:.80}: expected a table")
    packages = []
    for key, package in rows.items():
        name, _, version = key.rpartition("==")
        who = f"package {name!r:.80}"
        lines = package["files"] if isinstance(package, dict) else None
        if not isinstance(lines, list) or not all(isinstance(line, str) and " " in line for line in lines):
            raise ValueError(f"{who}: files: expected a list of 'NAME HASH'")
        files = dict(line.split(" ", 1) for line in lines)
        marker = text(package.get("marker", ""), f"{who}: marker")
        check_package(runtime, name, version, files, marker)
        check_needs(package.get("needs", []), who)
        build = parse_packages(package["build"], runtime) if "build" in package else None
        if build is not None and runtime == "python" and len(files) != 1:
            raise ValueError(f"{who}: is built, so it has one source, not {len(files)}")
        needs = tuple(package.get("needs", ()))
        packages.append(LockedPackage(name=name, version=version, files=files, marker=marker, needs=needs, build=build))
    return tuple(packages)


def _from_row(row: Mapping[str, Any], file: Path) -> LockedServer:
    if row["runtime"] not in _RUNTIMES:
        raise ValueError(f"runtime {row['runtime']!r:.80}; have {', '.join(_RUNTIMES)}")
    check_server(row)
    return LockedServer(
        name=check_name(row["name"]),
        runtime=row["runtime"],
        package=row["package"],
        version=row["version"],
        command=tuple(row["command"]),
        env=dict(row.get("env", {})),
        http=row.get("http", ""),
        headers=dict(row.get("headers", {})),
        sdk_major=row.get("sdk_major"),
        python=row.get("python", ""),
        python_version=row.get("python_version", ""),
        runs_code=_flag(row, "runs_code") or False,
        forks=_flag(row, "forks"),
        constraints=tuple(row.get("constraints", ())),
        until=row.get("until", ""),
        services=tuple(_to_service(service) for service in row.get("services", ())),
        source=_to_source(row["source"]) if "source" in row else None,
        packages=parse_packages(row["packages"], "python" if row["runtime"] == "native" else row["runtime"]),
        trees=dict(row.get("trees", {})),
        tools={name: ToolHashes.from_row(hashes) for name, hashes in row.get("tools", {}).items()},
        base=file.parent,
        file=file,
    )


def _to_service(row: Mapping[str, Any]) -> Service:
    try:
        return Service(
            name=row["name"],
            argv=tuple(text(word, "services.command") for word in row["command"]),
            ready=text(row["ready"], "services.ready"),
            ready_timeout_s=float(row["timeout_s"]),
        )
    except ConfigError as error:
        raise ValueError(str(error)) from error


def _to_source(row: Mapping[str, Any]) -> LockedSource:
    return LockedSource(
        files=dict(row["files"]),
        requires=tuple(row.get("requires", ())),
        include=tuple(row.get("include", ())),
        dev=_flag(row, "dev") or False,
    )


def _flag(row: Mapping[str, Any], name: str) -> bool | None:
    value = row.get(name)
    if value is not None and not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}; have true, false")
    return value
