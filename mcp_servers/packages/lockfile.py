"""`servers.lock`: which servers there are, to the byte, and what tools they had when they were locked.

TOML, made for review: no addresses, one line per file with its hash, secrets only as ``${NAME}``.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

import tomli_w

from gymcp.atomic import write_atomically
from gymcp.errors import ConfigError, IntegrityError
from gymcp.mcp_servers.packages.lock_grammar import check_needs, check_package, check_server, text
from gymcp.mcp_servers.tools.hashes import ToolHashes, hash_of_tools
from gymcp.paths import gymcp_home
from gymcp.types import Json

FORMAT = 1
DEFAULT = Path("servers.lock")
Runtime = Literal["python", "node", "image", "remote"]
"""remote: it runs elsewhere, at the URL that is its command; there are no packages then."""
_RUNTIMES = get_args(Runtime)
MAX_NAME = 64
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9_-]{{0,{MAX_NAME - 1}}}")
MAX_LOCK_CHARACTERS = 64_000_000
_REMEMBERED = "locks"
_HEADING = (
    "# Written by `gymcp servers`. Read it in review; change it with `gymcp servers add` and `gymcp servers lock`.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedPackage:
    """One package of a server's closure, the server's own among them."""

    name: str
    """For node the folder below the root, such as ``node_modules/a/node_modules/b``."""
    version: str
    files: Mapping[str, str]
    """Node: ``integrity``. Python: every wheel for Linux by file name. Image: ``id`` and, of one that a registry has,
    ``digest``; of a Dockerfile ``context``. Value: the hash, with its algorithm."""
    marker: str = ""
    """Python: on which machines it is needed; empty: all."""
    needs: tuple[str, ...] = ()
    """Node: the names of packages that it requires."""
    build: tuple[LockedPackage, ...] | None = None
    """None: nothing of it runs when it is installed. Else it is built in a sandbox: Python from its source, which is
    then its only file, with these packages; node by its own scripts."""


def content_of(package: LockedPackage) -> list[Json]:
    """All that decides what is installed of it, as JSON."""
    row: list[Json] = [package.name, package.version, package.marker, list(package.needs), dict(package.files)]
    return row if package.build is None else [*row, [content_of(needed) for needed in package.build]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedServer:
    name: str
    runtime: Runtime
    package: str
    version: str
    command: tuple[str, ...]
    """As a person would start it, with the exact version; ``${NAME}`` stands for an environment variable. In the
    place of an image that is built from a Dockerfile stands its path, from the lock's folder."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Values may hold ``${NAME}``; they are filled in when a server starts, never written down."""
    http: str = ""
    """PORT/PATH where it listens inside the sandbox; empty: it speaks over standard input and output."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of a remote server; secrets only as ``${NAME}``."""
    sdk_major: int | None = None
    """Of the MCP library in its closure; None where there is none."""
    python: str = ""
    """Which Python versions the closure was resolved for."""
    runs_code: bool = False
    """It executes what a model wrote: every episode gets a process that was started for it, never a forked one."""
    forks: bool | None = None
    """Python: whether it could be forked when it was locked; None: not tried, so its first start shows it."""
    packages: tuple[LockedPackage, ...] = ()
    trees: Mapping[str, str] = field(default_factory=dict)
    """Platform -> digest of all installed files there; only where it was locked."""
    tools: Mapping[str, ToolHashes] = field(default_factory=dict)
    base: Path = field(default=Path(), compare=False)
    """The lock's folder, from which paths in it count; not written down."""

    @property
    def tools_sha256(self) -> str:
        """One hash over all tools, whatever their order or the order of their keys."""
        return hash_of_tools(self.tools)


def read_lock(path: Path, *, consistent: bool = True) -> dict[str, LockedServer]:
    """The servers by name. Raises ConfigError for a file that is missing, malformed, or of a newer format.

    `consistent`: raises IntegrityError, too, where the hash of a server's tools is not that of the tools listed.
    """
    try:
        with path.open(encoding="utf-8") as file:
            content_text = file.read(MAX_LOCK_CHARACTERS + 1)
    except FileNotFoundError:
        raise ConfigError(f"lock '{path}': not found; make it with: gymcp servers add COMMAND --lock {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"lock '{path}': cannot be read: {error}") from error
    if len(content_text) > MAX_LOCK_CHARACTERS:
        raise ConfigError(f"lock '{path}': is longer than {MAX_LOCK_CHARACTERS:,} characters")
    try:
        content = tomllib.loads(content_text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"lock '{path}': not TOML: {error}") from error
    if content.get("format") != FORMAT:
        raise ConfigError(f"lock '{path}': format {content.get('format')!r}; this gymcp reads format {FORMAT}")
    servers: dict[str, LockedServer] = {}
    rows = content.get("server", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ConfigError(f"lock '{path}': its servers must be tables, [[server]]")
    for number, row in enumerate(rows, 1):
        try:
            server = _from_row(row, path.absolute().parent)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ConfigError(f"lock '{path}': server {number}: {type(error).__name__}: {error}") from error
        if server.name in servers:
            raise ConfigError(f"lock '{path}': two servers are named '{server.name}'")
        if consistent and server.tools_sha256 != row.get("tools_sha256"):
            raise IntegrityError(
                f"lock '{path}': server '{server.name}': tools_sha256 does not belong to its tools: edited by hand, or "
                "merged badly; run: gymcp servers lock"
            )
        servers[server.name] = server
    _remember(path.resolve(), gymcp_home() / _REMEMBERED)
    return servers


def remembered_locks() -> list[Path]:
    """Every lock that was read with this cache; it may be gone."""
    with contextlib.suppress(OSError):
        return [Path(line) for line in (gymcp_home() / _REMEMBERED).read_text(encoding="utf-8").splitlines()]
    return []


@functools.cache
def _remember(lock: Path, book: Path) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written holds no server of its own either
        if lock not in remembered_locks():
            book.parent.mkdir(parents=True, exist_ok=True)
            with book.open("a", encoding="utf-8") as file:
                file.write(f"{lock}\n")


def write_lock(path: Path, servers: Mapping[str, LockedServer]) -> None:
    """Replaces the file, or leaves it as it is."""
    rows = [_to_row(servers[name]) for name in sorted(servers)]
    write_atomically(path, (_HEADING + tomli_w.dumps({"format": FORMAT, "server": rows})).encode())


@contextlib.contextmanager
def editing(path: Path) -> Iterator[dict[str, LockedServer]]:
    """The servers of a lock to change in place; written on the way out. Others who edit the file wait."""
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        servers = read_lock(path, consistent=False) if path.exists() else {}
        yield servers
        write_lock(path, servers)
    finally:
        os.close(folder)


def locked(path: Path, name: str) -> LockedServer:
    """One server of a lock. Raises ConfigError, saying what there is instead."""
    servers = read_lock(path)
    if name not in servers:
        raise ConfigError(f"lock '{path}': no server '{name}'; have {', '.join(servers) or 'none'}")
    return servers[name]


def checked_name(name: str) -> str:
    """The name, where it can be one: it becomes part of a path. Raises ConfigError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(f"server name {name!r}: letters, digits, - and _ only, at most {MAX_NAME}; choose another")
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
    if server.trees:
        row["trees"] = dict(server.trees)
    row["packages"] = _package_rows(server.packages)
    row["tools"] = {name: hashes.to_row() for name, hashes in sorted(server.tools.items())}
    return row


def _package_rows(packages: tuple[LockedPackage, ...]) -> dict[str, Any]:
    return {
        f"{package.name}=={package.version}": ({"marker": package.marker} if package.marker else {})
        | ({"needs": list(package.needs)} if package.needs else {})
        | {"files": [f"{name} {digest}" for name, digest in package.files.items()]}
        | ({"build": _package_rows(package.build)} if package.build is not None else {})
        for package in packages
    }


def packages_of(rows: Mapping[str, Any], runtime: str = "python") -> tuple[LockedPackage, ...]:
    """The packages of a lock's tables. Raises ValueError, naming it, for a word that is not what it should be."""
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
        build = packages_of(package["build"], runtime) if "build" in package else None
        if build is not None and runtime == "python" and len(files) != 1:
            raise ValueError(f"{who}: is built, so it has one source, not {len(files)}")
        needs = tuple(package.get("needs", ()))
        packages.append(LockedPackage(name=name, version=version, files=files, marker=marker, needs=needs, build=build))
    return tuple(packages)


def _from_row(row: Mapping[str, Any], base: Path) -> LockedServer:
    if row["runtime"] not in _RUNTIMES:
        raise ValueError(f"runtime {row['runtime']!r:.80}; have {', '.join(_RUNTIMES)}")
    check_server(row)
    return LockedServer(
        name=checked_name(row["name"]),
        runtime=row["runtime"],
        package=row["package"],
        version=row["version"],
        command=tuple(row["command"]),
        env=dict(row.get("env", {})),
        http=row.get("http", ""),
        headers=dict(row.get("headers", {})),
        sdk_major=row.get("sdk_major"),
        python=row.get("python", ""),
        runs_code=_flag(row, "runs_code") or False,
        forks=_flag(row, "forks"),
        packages=packages_of(row["packages"], row["runtime"]),
        trees=dict(row.get("trees", {})),
        tools={name: ToolHashes.from_row(hashes) for name, hashes in row.get("tools", {}).items()},
        base=base,
    )


def _flag(row: Mapping[str, Any], name: str) -> bool | None:
    found = row.get(name)
    if found is not None and not isinstance(found, bool):
        raise ValueError(f"{name} = {found!r}; have true, false")
    return found
