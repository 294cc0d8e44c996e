"""Resolve requirements to wheels and install wheels into a virtualenv, both with uv. No code of a package runs here."""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
import urllib.parse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.markers import Marker
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from gymcp.errors import ConfigError, IntegrityError, UsageError
from gymcp.mcp_servers.packages.install_folder import find_uv, run_tool
from gymcp.mcp_servers.packages.lock_grammar import check_package
from gymcp.mcp_servers.packages.lockfile import LockedPackage
from gymcp.mcp_servers.sandbox import Interpreter, interpreter
from gymcp.scratch import scratch_folder

OLDEST_PYTHON = (3, 10)
"""Oldest Python version that a lock supports if its packages allow it; the MCP SDK needs this one."""
_NO_WHEEL = re.compile(r"Wheels are required for `(?P<name>[^`]+)`")
_SYSTEMS = ("manylinux", "linux")


class NoWheel(ConfigError):
    """A package of a closure has no wheel for Linux."""

    def __init__(self, message: str, package: str) -> None:
        super().__init__(message)
        self.package = package


@dataclass(frozen=True, slots=True, kw_only=True)
class Closure:
    packages: tuple[LockedPackage, ...]
    python: str
    """Specifier of the Python versions that the closure is for."""
    interpreter: Interpreter | None = None
    """Interpreter that was chosen for the server; None: the sandbox's own."""
    published: Mapping[str, str] = field(default_factory=dict)
    """Time at which the index got the newest file of a package, by the package's name, if the index says so."""


def resolve_wheels(
    who: str,
    lines: Sequence[str],
    *,
    python: Interpreter | None = None,
    links: Path | None = None,
    constraints: Sequence[str] = (),
    until: str = "",
) -> Closure:
    """Closure of the requirements, with the hash of every wheel for Linux.

    `python`: the interpreter that was chosen for the server; the closure is for its version and later ones. None: the
    sandbox's own, and the closure is for older ones as well, if its packages are. `links`: a folder with more wheels.
    `constraints`: requirements that limit versions, and add no package. `until`: time after which the index got files
    that are left out; empty: none are.

    Raises NoWheel for the first package without a wheel, ConfigError for any other failure.
    """
    with tempfile.TemporaryDirectory(prefix="resolve-", dir=scratch_folder()) as folder:
        answer = Path(folder) / "pylock.toml"
        argv = [find_uv(who), "pip", "compile", "--quiet", "--universal", "--only-binary", ":all:", "--no-header"]
        argv += ["--python", str((python or interpreter()).path), "--format", "pylock.toml", "-o", str(answer), "-"]
        argv += _find_links_options(links)
        if constraints:
            limits = Path(folder) / "constraints.txt"
            limits.write_text("".join(f"{line}\n" for line in constraints), encoding="utf-8")
            argv += ["--constraint", str(limits)]
        argv += ["--exclude-newer", until] if until else []
        try:
            _resolve(argv, who, "".join(f"{line}\n" for line in lines), python)
        except UsageError as error:
            if match := _NO_WHEEL.search(str(error)):
                raise NoWheel(str(error), match["name"]) from error
            raise ConfigError(str(error)) from error
        content = tomllib.loads(answer.read_text(encoding="utf-8"))
    packages = (_to_package(who, row, python) for row in content["packages"])
    return Closure(
        packages=tuple(filter(None, packages)),
        python=content.get("requires-python", ""),
        published=dict(_list_published(content["packages"])),
    )


def _list_published(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for row in rows:
        times = [wheel["upload-time"] for wheel in row.get("wheels", ()) if "upload-time" in wheel]
        if times:
            yield canonicalize_name(row["name"]), max(times).isoformat()


def applies(marker: str, python: Interpreter | None = None) -> bool:
    """True if the marker holds on this machine with that Python; None: the sandbox's own."""
    version = ".".join(map(str, (python or interpreter()).version))
    here = {"python_version": version, "python_full_version": f"{version}.0", "implementation_version": f"{version}.0"}
    return not marker or Marker(marker).evaluate(here)


def make_venv(
    who: str,
    venv: Path,
    packages: Sequence[LockedPackage],
    *,
    links: Path | None = None,
    python: Interpreter | None = None,
) -> None:
    """Make a virtualenv with these wheels and nothing else, for that interpreter; None: the sandbox's own.

    Raises UsageError, also for a package with malformed words; IntegrityError if a file does not have its hash.
    """
    try:
        lines = "".join(map(_requirement, packages))
    except ValueError as error:
        raise ConfigError(f"{who}: {error}") from error
    uv, path = find_uv(who), str((python or interpreter()).path)
    run_tool([uv, "venv", "--quiet", "--relocatable", "--no-project", "--python", path, str(venv)], who)
    requirements = venv.with_name("requirements.txt")
    requirements.write_text(lines, encoding="utf-8")
    argv = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--link-mode", "copy", "-r", str(requirements)]
    argv += _find_links_options(links)
    try:
        run_tool(argv, who, cwd=venv.parent)
    except UsageError as error:
        if "hash mismatch" in str(error).lower():
            raise IntegrityError(f"{error}; the index has other files than the lock") from error
        raise


def _find_links_options(links: Path | None) -> list[str]:
    """Options for `links` and the folders of the user's environment, which one option alone would replace."""
    if links is None:
        return []
    users = filter(None, os.environ.get("UV_FIND_LINKS", "").split(","))
    return [word for folder in (str(links), *users) for word in ("--find-links", folder)]


def _resolve(argv: list[str], who: str, lines: str, python: Interpreter | None) -> None:
    """Resolve for the version of the chosen interpreter and later ones.

    If none was chosen, resolve from `OLDEST_PYTHON` on, so that the lock serves other machines, and if that fails, from
    the sandbox's own Python on.
    """
    oldest = OLDEST_PYTHON if python is None else python.version
    try:
        run_tool([*argv, "--python-version", ".".join(map(str, oldest))], who, stdin=lines)
    except UsageError:
        if python is not None or interpreter().version <= OLDEST_PYTHON:
            raise
        run_tool(argv, who, stdin=lines)


def _to_package(who: str, row: Mapping[str, Any], python: Interpreter | None) -> LockedPackage | None:
    """Lock entry of a package; None for a package that is for other systems only. Raises NoWheel."""
    files = {}
    for wheel in row.get("wheels", ()):
        source = wheel.get("name") or wheel.get("url") or wheel.get("path")
        name = urllib.parse.unquote(PurePosixPath(urllib.parse.urlsplit(source).path).name)
        if _for_linux(name):
            files[name] = f"sha256:{wheel['hashes']['sha256']}"
    marker = row.get("marker", "")
    if not files and not applies(marker, python):
        return None
    name = canonicalize_name(row["name"])
    if not files:
        raise NoWheel(f"{who}: package '{name}' {row.get('version', '')} has no wheel for Linux", name)
    return LockedPackage(name=name, version=row["version"], files=files, marker=marker)


def _for_linux(filename: str) -> bool:
    """True for a wheel for CPython on a common Linux. A lock with every existing wheel would be five times as long."""
    try:
        *_, tags = parse_wheel_filename(filename)
    except InvalidWheelFilename:
        return False
    return any(
        tag.platform == "any" or (tag.platform.startswith(_SYSTEMS) and tag.platform.endswith(("x86_64", "aarch64")))
        for tag in tags
        if tag.interpreter.startswith(("cp3", "py3", "py2")) and not re.fullmatch(r"cp3\d+t", tag.abi)
    )


def _requirement(package: LockedPackage) -> str:
    """Line for uv. Raises ValueError for a package with words that would turn it into another line, or into several."""
    check_package("python", package.name, package.version, package.files, package.marker)
    marker = f" ; {package.marker}" if package.marker else ""
    hashes = "".join(f" --hash={sha256}" for sha256 in package.files.values())
    return f"{package.name}=={package.version}{marker}{hashes}\n"
