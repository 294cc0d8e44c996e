"""Packages that a native server imports: declared by its environment, locked and installed like those of any server."""

from __future__ import annotations

import shlex
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.commands import parse_requirement
from gymcp.mcp_servers.packages.install import ensure_verified
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK, LockedServer, check_name, name_lock, read_lock


def locked_packages(server: str, *requirements: str, lock: Path | str = DEFAULT_LOCK) -> Path:
    """Folder with the packages that the lock has for a native server, for the parameter `packages` of `native_server`.

    `requirements`: the packages that the server imports, each as PACKAGE==VERSION. Their closure is installed if it is
    missing, and verified once per process. Raises ConfigError if the lock is missing or has other packages, UsageError
    if they cannot be fetched, IntegrityError if the fetched or installed files are not the locked ones.
    """
    who = f"server '{check_name(server)}'"
    if not requirements:
        raise ConfigError(f"{who}: declares no package; write PACKAGE==VERSION, or leave out packages=")
    declared = tuple(parse_requirement(who, text, pinned=True) for text in requirements)
    folder = ensure_verified(_find_entry(server, declared, Path(lock)))
    return next(folder.glob("venv/lib/python*/site-packages"))


def _find_entry(server: str, declared: tuple[str, ...], lock: Path) -> LockedServer:
    """The entry of the lock. Raises ConfigError with the command that makes the lock what it must be."""
    who = f"server '{server}'"
    words = shlex.quote(" ".join(("pip install", *declared)))
    command = f"gymcp servers add {words} --name {server}{name_lock(lock)}"
    entry = read_lock(lock).get(server) if lock.exists() else None
    if entry is None:
        raise ConfigError(f"{who}: its packages are not in the lock '{lock}'; lock them with: {command}")
    if entry.runtime != "native":
        raise ConfigError(
            f"{who}: lock '{lock}' has another server under this name: {' '.join(entry.command)}; give one of them"
            " another name"
        )
    locked = entry.command[2:]
    if sorted(locked) != sorted(declared):
        raise ConfigError(f"{who}: declares {', '.join(declared)}, but locked are {', '.join(locked)}; run: {command}")
    return entry
