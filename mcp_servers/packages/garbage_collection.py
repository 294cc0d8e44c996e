"""Find installed servers, fetched interpreters and built images that no lock names any more.

A lock can lie anywhere, so every lock is remembered when it is read.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.image import build_tag
from gymcp.mcp_servers.packages.install import folder_of
from gymcp.mcp_servers.packages.install_folder import servers_folder
from gymcp.mcp_servers.packages.lockfile import list_remembered_locks, read_lock
from gymcp.mcp_servers.packages.own_source.source import folder_of_copy
from gymcp.mcp_servers.packages.pythons.search import list_fetched
from gymcp.mcp_servers.sandbox.docker.images import (
    BUILT_REPOSITORY,
    DOCKERFILE_LABEL,
    context_digest,
    list_built_images,
    name_of_build,
)
from gymcp.process_owner import is_unlocked


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedFolder:
    """Folder of an installed server or of a fetched interpreter."""

    folder: Path
    megabytes: float
    is_unlocked: bool
    """False if a living process uses it. It is then left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """Image that was built from a Dockerfile with this cache."""

    name: str
    """Tag of the image; its id if a later build has taken the tag."""
    megabytes: float
    """Size of all layers, those of the base image included."""
    needed_by: str
    """Reason for which the image is still needed, in words. Empty: it is not."""


def find_built_images(locks: Iterable[Path]) -> list[BuiltImage]:
    """Images that were built from Dockerfiles.

    An image is needed as long as a lock names it, or as long as the Dockerfile's folder has not changed. Raises
    ConfigError for a lock that cannot be read.
    """
    rows = list_built_images()
    if not rows:
        return []
    named = {
        name: f"{path} names it"
        for path in locks
        for server in read_lock(path, consistent=False).values()
        if (name := build_tag(server)) is not None
    }
    return [_to_built_image(row, named) for row in rows]


def _to_built_image(row: Mapping[str, Any], named: Mapping[str, str]) -> BuiltImage:
    tags = [tag for tag in row.get("RepoTags") or () if not tag.startswith("<none>")]
    ours = [tag for tag in tags if tag.startswith(f"{BUILT_REPOSITORY}:")]
    if others := sorted(set(tags) - set(ours)):
        needed = f"it is called {others[0]}, too"
    else:
        dockerfile = Path(row["Labels"][DOCKERFILE_LABEL])
        needed = next((why for tag in ours if (why := named.get(tag, "") or _why_current(tag, dockerfile))), "")
    return BuiltImage(name=ours[0] if ours else row["Id"], megabytes=row["Size"] / 1e6, needed_by=needed)


def _why_current(tag: str, dockerfile: Path) -> str:
    with contextlib.suppress(ConfigError, OSError):
        if name_of_build(context_digest(dockerfile)) == tag:
            return f"{dockerfile} is as it was"
    return ""


def find_locks(more: Iterable[Path]) -> list[Path]:
    """Existing lock files among `more` and those that were ever read with this cache."""
    locks = {path.resolve() for path in (*list_remembered_locks(), *more)}
    return sorted(path for path in locks if path.is_file())


def find_unused_servers(locks: Iterable[Path]) -> list[UnusedFolder]:
    """Installed servers that none of the locks names for this machine. Raises ConfigError for an unreadable lock."""
    entries = [server for lock in locks for server in read_lock(lock, consistent=False).values()]
    named = {folder_of(server) for server in entries if server.runtime in ("python", "node", "native")}
    named |= {folder_of_copy(server, server.source.files) for server in entries if server.source is not None}
    root = servers_folder()
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [_describe(folder) for folder in folders if folder not in named and not folder.name.startswith(".")]


def find_unused_pythons(locks: Iterable[Path]) -> list[UnusedFolder]:
    """Fetched interpreters of versions that no server of the locks has. Raises ConfigError for an unreadable lock."""
    named = {server.python_version for lock in locks for server in read_lock(lock, consistent=False).values()}
    return [_describe(folder) for folder, version in list_fetched().items() if version not in named]


def _describe(folder: Path) -> UnusedFolder:
    return UnusedFolder(folder=folder, megabytes=_count_bytes(folder) / 1e6, is_unlocked=is_unlocked(folder))


def remove_folder(folder: Path) -> bool:
    """Remove the folder, and the links to it beside it.

    False if a living process uses the folder, or the folder around it, into which it is fetching.
    """
    with contextlib.ExitStack() as stack:
        for locked in (folder.parent, folder):
            handle = os.open(locked, os.O_RDONLY | os.O_CLOEXEC)
            stack.callback(os.close, handle)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        shutil.rmtree(folder, ignore_errors=True)
    for path in folder.parent.iterdir():
        if path.is_symlink() and path.resolve() == folder.resolve():
            path.unlink(missing_ok=True)
    return True


def _count_bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
