"""Packages that a suite's code imports, in a virtualenv of its own, from wheels named by their hashes."""

from __future__ import annotations

import tomllib
from pathlib import Path

from gymcp.envs.suites.upstream.verified_cache import verified_folder
from gymcp.errors import ConfigError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.native.server import precompile
from gymcp.mcp_servers.packages.lockfile import LockedPackage, content_of, parse_packages
from gymcp.mcp_servers.packages.python import platform_name
from gymcp.mcp_servers.packages.wheels import make_venv
from gymcp.mcp_servers.sandbox import interpreter
from gymcp.visible_text import one_line

REVISION = 2
"""Part of the folder's name, raised with every change of how it is made."""


def install_packages(suite: str, lock: Path, home: Path) -> Path:
    """The folder with the packages of a lock, for the sandbox's interpreter; makes it if it is missing.

    Raises UsageError if they cannot be had, IntegrityError if a file does not have its hash, InstallDrift if the folder
    is not as it was installed.
    """
    site_packages = packages_folder(lock, home)

    def make(folder: Path) -> None:
        make_venv(f"suite '{suite}': install", folder / "venv", _read(lock))
        precompile(folder / site_packages.relative_to(_root(lock, home)))

    verified_folder(suite, _root(lock, home), make)
    return site_packages


def packages_folder(lock: Path, home: Path) -> Path:
    """The folder that `install_packages` makes, whether or not it is there yet."""
    major, minor = interpreter().version
    return _root(lock, home) / "venv" / "lib" / f"python{major}.{minor}" / "site-packages"


def _root(lock: Path, home: Path) -> Path:
    key = digest([REVISION, platform_name(), [content_of(package) for package in _read(lock)]])
    return home / "suites" / "packages" / f"{lock.stem}-{key[:16]}"


def _read(lock: Path) -> tuple[LockedPackage, ...]:
    try:
        return parse_packages(tomllib.loads(lock.read_text(encoding="utf-8"))["packages"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"lock '{lock}': cannot be read: {type(error).__name__}: {one_line(str(error))}") from error
