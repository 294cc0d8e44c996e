"""Installed servers and built images that nothing names any more. Locks are remembered when they are read: they can lie
anywhere.
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
from gymcp.mcp_servers.packages.image import built_name
from gymcp.mcp_servers.packages.install import folder_of
from gymcp.mcp_servers.packages.install_folder import servers_folder
from gymcp.mcp_servers.packages.lockfile import read_lock, remembered_locks
from gymcp.mcp_servers.sandbox.docker.images import (
    BUILT_REPOSITORY,
    DOCKERFILE_LABEL,
    context_digest,
    list_built_images,
    name_of_build,
)
from gymcp.process_owner import is_free


@dataclass(frozen=True, slots=True, kw_only=True)
class UnusedServer:
    folder: Path
    megabytes: float
    is_free: bool
    """False where a living process has used it: it is left alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltImage:
    """Of a Dockerfile, built with this cache."""

    name: str
    """Its id where another build has its name now."""
    megabytes: float
    """With the image that it is made from."""
    needed_by: str
    """In words; empty: by nothing."""


def images_with_users(locks: Iterable[Path]) -> list[BuiltImage]:
    """What was built from Dockerfiles: needed while a lock names it, or while the Dockerfile's folder is as it was.

    Raises ConfigError for a lock that cannot be read.
    """
    found = list_built_images()
    if not found:
        return []
    named = {
        name: f"{path} names it"
        for path in locks
        for server in read_lock(path, consistent=False).values()
        if (name := built_name(server)) is not None
    }
    return [_with_user(row, named) for row in found]


def _with_user(row: Mapping[str, Any], named: Mapping[str, str]) -> BuiltImage:
    tags = [tag for tag in row.get("RepoTags") or () if not tag.startswith("<none>")]
    ours = [tag for tag in tags if tag.startswith(f"{BUILT_REPOSITORY}:")]
    if others := sorted(set(tags) - set(ours)):
        needed = f"it is called {others[0]}, too"
    else:
        dockerfile = Path(row["Labels"][DOCKERFILE_LABEL])
        needed = next((why for tag in ours if (why := named.get(tag, "") or _still_described(tag, dockerfile))), "")
    return BuiltImage(name=ours[0] if ours else row["Id"], megabytes=row["Size"] / 1e6, needed_by=needed)


def _still_described(tag: str, dockerfile: Path) -> str:
    with contextlib.suppress(ConfigError, OSError):
        if name_of_build(context_digest(dockerfile)) == tag:
            return f"{dockerfile} is as it was"
    return ""


def known_locks(more: Iterable[Path]) -> list[Path]:
    """Those that were ever read with this cache, and `more`, where they are still there."""
    locks = {path.resolve() for path in (*remembered_locks(), *more)}
    return sorted(path for path in locks if path.is_file())


def unused_servers(locks: Iterable[Path]) -> list[UnusedServer]:
    """What none of the locks names for this machine. Raises ConfigError for a lock that cannot be read."""
    entries = [server for lock in locks for server in read_lock(lock, consistent=False).values()]
    named = {folder_of(server) for server in entries if server.runtime in ("python", "node")}
    root = servers_folder()
    folders = sorted(path for path in root.iterdir() if path.is_dir()) if root.is_dir() else []
    return [
        UnusedServer(folder=folder, megabytes=_bytes(folder) / 1e6, is_free=is_free(folder))
        for folder in folders
        if folder not in named and not folder.name.startswith(".")
    ]


def remove_server(folder: Path) -> bool:
    """False where a living process has begun to use it meanwhile."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except BlockingIOError:
        return False
    finally:
        os.close(handle)
    return True


def _bytes(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            total += path.lstat().st_blocks * 512
    return total
