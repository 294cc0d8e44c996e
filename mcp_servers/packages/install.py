"""One face for both runtimes: resolve, install once, say how to start."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from gymcp.atomic import make_once, make_world_readable
from gymcp.cache import cache_errors
from gymcp.errors import IntegrityError, SandboxUnavailable, UsageError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.packages import image, node, python
from gymcp.mcp_servers.packages.commands import Wanted, parse_command
from gymcp.mcp_servers.packages.install_folder import (
    INSIDE,
    InstallDrift,
    check_files,
    hold,
    let_go,
    servers_folder,
    tree_digest,
)
from gymcp.mcp_servers.packages.lockfile import LockedServer, content_of
from gymcp.process_owner import is_unlocked, staging_folder

__all__ = [
    "INSIDE",
    "ensure_installed",
    "ensure_present",
    "folder_of",
    "is_present",
    "mend_installed",
    "resolve",
    "start_words",
    "verified",
    "verify_installed",
    "with_tree",
]

MEND = "gymcp servers sync"
REVISION = 1
"""Of how folders are made: bumped when the same lock gives another folder."""
_verified: set[tuple[object, ...]] = set()


def resolve(wanted: Wanted) -> LockedServer:
    """What to lock, still without installed files and tools. Raises ConfigError."""
    if wanted.runtime == "image":
        return image.resolve(wanted)
    return _runtime(wanted.runtime).resolve(wanted)  # type: ignore[no-any-return]


def is_present(server: LockedServer) -> bool:
    """True where this machine has the server as it is locked; an image without an engine is not there."""
    if server.runtime == "remote":
        return True
    if server.runtime != "image":
        return folder_of(server).is_dir()
    try:
        return image.is_present(server)
    except SandboxUnavailable:
        return False


def ensure_present(server: LockedServer) -> str:
    """Where the server is, in words, installed where it is not yet; raises what `ensure_installed` raises."""
    if server.runtime == "remote":
        return server.command[0]
    if server.runtime == "image":
        return f"image {image.ensure_present(server)['Id']}"
    return str(ensure_installed(server))


def folder_of(server: LockedServer) -> Path:
    """Where this machine has it, or would have it: another closure is another folder."""
    closure = [content_of(package) for package in server.packages]
    key = digest([REVISION, server.runtime, _runtime(server.runtime).platform_name(), closure])
    return servers_folder() / f"{server.name}-{key[:16]}"


def ensure_installed(server: LockedServer) -> Path:
    """The server's folder, made where it is not there yet; what is there is used without network.

    Held while this process lives: `gymcp clean --servers` leaves it alone.

    Raises UsageError where it cannot be fetched, IntegrityError where a file has another hash than in the lock.
    """
    with cache_errors():
        while True:
            folder = make_once(folder_of(server), lambda folder: _runtime(server.runtime).install(server, folder))
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                hold(folder)
                if folder.is_dir():
                    return folder


def with_tree(server: LockedServer) -> LockedServer:
    """The locked server with the digest of what is installed here, which is installed where it is not yet."""
    if server.runtime == "image":
        return server
    files = check_files(ensure_installed(server), f"server '{server.name}'", MEND)
    return replace(server, trees={**server.trees, _runtime(server.runtime).platform_name(): tree_digest(files)})


def verify_installed(server: LockedServer) -> None:
    """Every installed file, the version and the locked digest. Raises IntegrityError, naming what differs."""
    if server.runtime == "image":
        image.verify(server)
        return
    _verify(server, ensure_installed(server))


def verified(server: LockedServer, *, mend: str = MEND) -> Path:
    """The folder of a server in packages, made where it is not there yet, and as it is locked.

    Verified once per process, lock entry and folder: some thousand files are hashed in about a quarter of a second.
    Raises what `ensure_installed` and `verify_installed` raise; `mend`: the command that installs it again.
    """
    folder = ensure_installed(server)
    seen = (folder, folder.stat().st_ino, server.name, server.version, tuple(sorted(server.trees.items())))
    if seen not in _verified:
        try:
            _verify(server, folder, mend)
        except InstallDrift:
            let_go(folder)  # it is not used, and may be made anew
            raise
        _verified.add(seen)
    return folder


def mend_installed(server: LockedServer) -> str | None:
    """Installs a server that is here anew where it is not as it is locked; what was wrong, None where nothing was.

    An image has its content for a name. Raises what `ensure_installed` raises, UsageError where another process uses
    the folder, IntegrityError where the lock disagrees with itself.
    """
    if server.runtime not in ("node", "python"):
        return None
    folder = folder_of(server)
    with cache_errors():
        try:
            _verify(server, folder)
        except IntegrityError as error:
            if not is_unlocked(folder):
                raise UsageError(f"{error}; a process uses {folder}: end it, then run: gymcp servers sync") from error
            with staging_folder(folder) as made, staging_folder(folder) as old:
                _runtime(server.runtime).install(server, made)
                _verify(server, made)
                make_world_readable(made)
                folder.rename(old)
                made.rename(folder)
            return str(error)
    return None


def _verify(server: LockedServer, folder: Path, mend: str = MEND) -> None:
    who = f"server '{server.name}'"
    files = check_files(folder, who, mend)
    found = _runtime(server.runtime).installed_version(server, folder)
    if found != server.version:
        raise InstallDrift(
            f"{who}: locked is version {server.version}, installed is {found}; run: {mend}, or, where the lock was "
            f"edited by hand: gymcp servers lock {server.name}",
            folder,
        )
    wanted = server.trees.get(_runtime(server.runtime).platform_name())
    if wanted is not None and tree_digest(files) != wanted:
        raise InstallDrift(f"{who}: the files in {folder} are not the locked ones; run: {mend}, or remove it", folder)


def start_words(server: LockedServer) -> tuple[str, ...]:
    """The command inside the sandbox, without arguments. Raises ConfigError where the package has no such program."""
    program = parse_command(server.command, name=server.name).program
    argv = _runtime(server.runtime).argv_inside(server, ensure_installed(server), program)
    return tuple(argv)


def _runtime(name: str) -> ModuleType:
    return {"node": node, "python": python}[name]
