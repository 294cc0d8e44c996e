"""Resolve, install, verify and start servers of any runtime: Python, Node, image, remote."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

from gymcp.atomic import cache_errors, make_once, make_world_readable
from gymcp.errors import IntegrityError, SandboxUnavailable, UsageError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.packages import image, node, python
from gymcp.mcp_servers.packages.commands import parse_command
from gymcp.mcp_servers.packages.install_folder import (
    INSIDE,
    InstallDrift,
    check_files,
    hold_folder,
    release_folder,
    servers_folder,
    tree_digest,
)
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.lockfile import LockedServer, content_of, name_lock
from gymcp.mcp_servers.packages.own_source.resolve import resolve_own
from gymcp.process_owner import is_unlocked, staging_folder

__all__ = [
    "INSIDE",
    "ensure_installed",
    "ensure_present",
    "ensure_verified",
    "folder_of",
    "is_present",
    "repair_installed",
    "resolve",
    "start_words",
    "verify_installed",
    "with_tree",
]

REVISION = 1
"""Number that is raised whenever the same lock entry would be installed differently than before."""
_verified: set[tuple[object, ...]] = set()


def resolve(request: InstallRequest) -> LockedServer:
    """Lock entry, still without installed files and tools. Raises ConfigError."""
    if request.runtime == "image":
        return image.resolve(request)
    if request.own is not None:
        return resolve_own(request)
    return _runtime(request.runtime).resolve(request)  # type: ignore[no-any-return]


def is_present(server: LockedServer) -> bool:
    """True if this machine has the locked server. Without an engine no image is present."""
    if server.runtime == "remote":
        return True
    if server.runtime != "image":
        return folder_of(server).is_dir()
    try:
        return image.is_present(server)
    except SandboxUnavailable:
        return False


def ensure_present(server: LockedServer) -> str:
    """Install the server if it is missing; return its location in words. Raises the errors of `ensure_installed`."""
    if server.runtime == "remote":
        return server.command[0]
    if server.runtime == "image":
        return f"image {image.ensure_present(server)['Id']}"
    return str(ensure_installed(server))


def folder_of(server: LockedServer) -> Path:
    """Folder in which this machine has, or would have, the server. Every closure of packages has its own folder.

    Python servers with the same closure share the folder of the one that was installed first.
    """
    closure = [content_of(package) for package in server.packages]
    key = digest([REVISION, server.runtime, _runtime(server.runtime).platform_name(server), closure])[:16]
    own = servers_folder() / f"{server.name}-{key}"
    if server.runtime == "node" or own.is_dir():  # npm is told the server's own package
        return own
    return min((path for path in servers_folder().glob(f"[!.]*-{key}") if path.is_dir()), default=own)


def ensure_installed(server: LockedServer) -> Path:
    """Folder of the server, which is installed if it is missing. An installed server is used without network.

    The folder is locked while this process lives, so `gymcp clean --servers` leaves it alone.

    Raises UsageError if the server cannot be fetched, IntegrityError if a file has another hash than in the lock.
    """
    with cache_errors():
        while True:
            folder = make_once(folder_of(server), lambda folder: _runtime(server.runtime).install(server, folder))
            with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                hold_folder(folder)
                return folder


def with_tree(server: LockedServer) -> LockedServer:
    """The lock entry with the digest of the files installed here. Installs the server if it is missing."""
    if server.runtime == "image":
        return server
    files = check_files(ensure_installed(server), f"server '{server.name}'", _name_repair(server))
    return replace(server, trees={**server.trees, _runtime(server.runtime).platform_name(server): tree_digest(files)})


def verify_installed(server: LockedServer) -> None:
    """Check every installed file, the version and the locked digest. Raises IntegrityError, naming the difference."""
    if server.runtime == "image":
        image.verify(server)
        return
    _verify(server, ensure_installed(server))


def ensure_verified(server: LockedServer, *, repair: str | None = None) -> Path:
    """Folder of a server from packages, which is installed if it is missing and has been verified against the lock.

    It is verified once per process, lock entry and folder: hashing some thousand files takes about 0.25 s. Raises the
    errors of `ensure_installed` and `verify_installed`. `repair`: the command that installs the server again.
    """
    folder = ensure_installed(server)
    seen = (folder, folder.stat().st_ino, server.name, server.version, tuple(sorted(server.trees.items())))
    if seen not in _verified:
        try:
            _verify(server, folder, repair)
        except InstallDrift:
            release_folder(folder)  # it is not used, so it may be installed again
            raise
        _verified.add(seen)
    return folder


def repair_installed(server: LockedServer) -> str | None:
    """Install a present server again if it differs from the lock; return the difference, None if there was none.

    An image needs no repair: its content is its name. Raises the errors of `ensure_installed`, UsageError if another
    process uses the folder, IntegrityError if the lock contradicts itself.
    """
    if server.runtime not in ("node", "python", "native"):
        return None
    folder = folder_of(server)
    with cache_errors():
        try:
            _verify(server, folder)
        except IntegrityError as error:
            if not is_unlocked(folder):
                after = f"a process uses {folder}: end it, then run: {_name_repair(server)}"
                raise UsageError(f"{error}; {after}") from error
            with staging_folder(folder) as new, staging_folder(folder) as old:
                _runtime(server.runtime).install(server, new)
                _verify(server, new)
                make_world_readable(new)
                folder.rename(old)
                new.rename(folder)
            return str(error)
    return None


def _name_repair(server: LockedServer) -> str:
    """Command that installs the servers of the lock again."""
    return f"gymcp servers sync{name_lock(server.file)}"


def _verify(server: LockedServer, folder: Path, repair: str | None = None) -> None:
    who, repair = f"server '{server.name}'", repair or _name_repair(server)
    files = check_files(folder, who, repair)
    version = _runtime(server.runtime).read_version(server, folder) if server.source is None else server.version
    if version != server.version:
        raise InstallDrift(
            f"{who}: locked is version {server.version}, installed is {version}; run: {repair}, or, if the lock was "
            f"edited by hand: {server.lock_command}",
            folder,
        )
    expected = server.trees.get(_runtime(server.runtime).platform_name(server))
    if expected is not None and tree_digest(files) != expected:
        raise InstallDrift(f"{who}: the files in {folder} are not the locked ones; run: {repair}, or remove it", folder)


def start_words(server: LockedServer) -> tuple[str, ...]:
    """Command inside the sandbox, without arguments. Raises ConfigError if the package has no such program."""
    program = parse_command(server.command, name=server.name).program
    argv = _runtime(server.runtime).argv_inside(server, ensure_installed(server), program)
    return tuple(argv)


def _runtime(name: str) -> ModuleType:
    return {"node": node, "python": python, "native": python}[name]
