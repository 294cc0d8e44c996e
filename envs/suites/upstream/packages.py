"""Packages that a suite's code imports: a virtualenv of its own, from wheels named by their hashes."""

from __future__ import annotations

import tomllib
from pathlib import Path

from gymcp.envs.suites.upstream.verified_cache import kept_folder
from gymcp.errors import ConfigError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.native.server import precompile
from gymcp.mcp_servers.packages.lockfile import LockedPackage, content_of, parse_packages
from gymcp.mcp_servers.packages.python import platform_name
from gymcp.mcp_servers.packages.wheels import make_venv
from gymcp.mcp_servers.sandbox import interpreter

REVISION = 2
"""Of how the folder is made."""


def locked_packages(suite: str, lock: Path, home: Path) -> Path:
    """The folder with the packages of a lock, for the sandbox's interpreter, made where it is not there yet.

    Raises UsageError where they cannot be had, IntegrityError where a file does not have its hash, InstallDrift where
    what is there is not what was installed.
    """
    made = packages_folder(lock, home)

    def make(folder: Path) -> None:
        make_venv(f"suite '{suite}': install", folder / "venv", _read(lock))
        precompile(folder / made.relative_to(_root(lock, home)))

    kept_folder(suite, _root(lock, home), make)
    return made


def packages_folder(lock: Path, home: Path) -> Path:
    """Where `locked_packages` has them, or would have them."""
    major, minor = interpreter().version
    return _root(lock, home) / "venv" / "lib" / f"python{major}.{minor}" / "site-packages"


def _root(lock: Path, home: Path) -> Path:
    key = digest([REVISION, platform_name(), [content_of(package) for package in _read(lock)]])
    return home / "suites" / "packages" / f"{lock.stem}-{key[:16]}"


def _read(lock: Path) -> tuple[LockedPackage, ...]:
    try:
        return parse_packages(tomllib.loads(lock.read_text(encoding="utf-8"))["packages"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"lock '{lock}': cannot be read: {type(error).__name__}: {error}") from error
