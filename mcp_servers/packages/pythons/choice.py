"""The interpreter of a server in Python: the sandbox's own, one of this machine, or one that uv fetches."""

from __future__ import annotations

import contextlib
import logging
import os
import re
from collections.abc import Iterable, Iterator

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from gymcp.atomic import cache_errors
from gymcp.errors import ConfigError, UsageError
from gymcp.mcp_servers.packages.install_folder import find_uv, hold_folder, run_tool
from gymcp.mcp_servers.packages.pythons.search import (
    KNOWN_VERSIONS,
    find_fetched_folder,
    find_interpreter,
    list_versions,
    pythons_folder,
)
from gymcp.mcp_servers.sandbox import Interpreter, interpreter
from gymcp.mcp_servers.sandbox.interpreter import MIN_VERSION
from gymcp.process_owner import lock_folder

_VERSION = re.compile(r"3\.(\d{1,2})")
log = logging.getLogger(__name__)
_known: dict[str, Interpreter] = {}
"""Interpreters that were found, by version."""


def check_version(who: str, text: str) -> str:
    """The version, such as 3.12. Raises ConfigError for any other text, and for a version that is too old."""
    match = _VERSION.fullmatch(text)
    if match is None:
        raise ConfigError(f"{who}: --python '{text}': expected a minor version of Python 3, such as 3.12")
    if int(match[1]) < MIN_VERSION[1]:
        raise ConfigError(
            f"{who}: --python {text}: the oldest that servers run on is {'.'.join(map(str, MIN_VERSION))}"
        )
    return text


def interpreter_for(who: str, version: str) -> Interpreter:
    """The interpreter of a version, which uv fetches if this machine has none; the sandbox's own for an empty version.

    Raises UsageError if it cannot be fetched.
    """
    own = interpreter()
    if not version or version == _text(own.version):
        return own
    wanted = (3, int(check_version(who, version).partition(".")[2]))
    if version not in _known:
        path = _find_and_hold(wanted)
        if path is None:
            with _keep_all():
                _fetch(who, version)
                path = _find_and_hold(wanted)
            log.warning("%s: this machine had no Python %s; uv has fetched it into %s", who, version, pythons_folder())
        if path is None:
            raise UsageError(
                f"{who}: uv has fetched Python {version} into {pythons_folder()}, but it does not start there"
            )
        _known[version] = path
    return _known[version]


def _find_and_hold(version: tuple[int, int]) -> Interpreter | None:
    """The interpreter of this machine; a fetched one is kept from `gymcp clean` while this process lives."""
    path = find_interpreter(version)
    folder = find_fetched_folder(path) if path is not None else None
    if folder is not None:
        try:
            hold_folder(folder)
        except FileNotFoundError:  # it was removed meanwhile
            return None
    return path


@contextlib.contextmanager
def _keep_all() -> Iterator[None]:
    """The context in which `gymcp clean` removes no fetched interpreter: one is being fetched, and is not held yet."""
    folder = pythons_folder()
    with cache_errors():
        folder.mkdir(parents=True, exist_ok=True)
        handle = lock_folder(folder)
    try:
        yield
    finally:
        os.close(handle)


def choose_version(who: str, requires: str, wanted: str = "") -> str:
    """Version of the interpreter that a specifier needs; empty if the sandbox's own fits and none is wanted.

    `wanted` must fit. Else it is the version of this machine that fits and is nearest to the sandbox's, or the nearest
    that uv fetches. Raises UsageError if there is none, or if it cannot be fetched.
    """
    try:
        specifier = SpecifierSet(requires)
    except InvalidSpecifier as error:
        raise ConfigError(f"{who}: requires-python '{requires}' is not understood") from error
    if wanted:
        if not _fits(specifier, check_version(who, wanted)):
            raise ConfigError(f"{who}: needs Python {requires}, and not {wanted}")
        return wanted
    own = interpreter().version
    if _fits(specifier, _text(own)):
        return ""
    have = list_versions()
    for version in _sort_fitting(specifier, have, own):
        if find_interpreter(version) is not None:
            return _text(version)
    nearest = next(_sort_fitting(specifier, KNOWN_VERSIONS, own), None)
    if nearest is None:
        raise ConfigError(
            f"{who}: needs Python {requires}; the sandbox has {_text(own)}, this machine has "
            f"{', '.join(map(_text, have)) or 'no other'}, and no version that fits is known to fetch"
        )
    interpreter_for(f"{who}: needs Python {requires}", _text(nearest))
    return _text(nearest)


def _sort_fitting(
    specifier: SpecifierSet, versions: Iterable[tuple[int, int]], own: tuple[int, int]
) -> Iterator[tuple[int, int]]:
    """The versions that fit, the nearest to the sandbox's own first."""
    by_distance = sorted(versions, key=lambda version: (abs(version[1] - own[1]), version))
    return (version for version in by_distance if _fits(specifier, _text(version)))


def _fits(specifier: SpecifierSet, version: str) -> bool:
    """True if some release of the minor version fits: requirements such as >=3.10.2 or !=3.9.7 name releases."""
    return specifier.contains(f"{version}.99") or specifier.contains(f"{version}.0")


def _text(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _fetch(who: str, version: str) -> None:
    """Have uv fetch an interpreter into gymcp's cache. Raises UsageError."""
    folder = pythons_folder()
    argv = [find_uv(who), "python", "install", "--quiet", "--no-bin", "--no-config", "--install-dir", str(folder)]
    try:
        run_tool([*argv, f"cpython-{version}"], "uv")
    except UsageError as error:
        mirror = os.environ.get("UV_PYTHON_INSTALL_MIRROR")
        where = f"from the mirror {mirror}" if mirror else "from where uv fetches it"
        raise UsageError(
            f"{who}: this machine has no Python {version}, and it cannot be fetched {where}: {error}; install it, or "
            "name a mirror in UV_PYTHON_INSTALL_MIRROR"
        ) from error
