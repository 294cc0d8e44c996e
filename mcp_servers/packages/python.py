"""Servers from a Python package index: resolved and installed by uv, as wheels, into a virtualenv of their own.

The virtualenv is for the sandbox's interpreter. It is relocatable, because the sandbox mounts it at another path.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from gymcp.errors import ConfigError, UsageError
from gymcp.mcp_servers.packages.install_folder import INSIDE, last_words, machine, write_manifest
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.lockfile import LockedPackage, LockedServer
from gymcp.mcp_servers.packages.pythons.choice import choose_version, interpreter_for
from gymcp.mcp_servers.packages.sdists import build_package, ensure_wheel, package_of_wheel
from gymcp.mcp_servers.packages.wheels import Closure, NoWheel, applies, make_venv, resolve_wheels
from gymcp.mcp_servers.sandbox import Interpreter, interpreter

_ELF = b"\x7fELF"
_NEEDS_PYTHON = re.compile(r"requires Python ([<>=!~]=?[\d.*]+(?:, ?[<>=!~]=?[\d.*]+)*)")
"""Words of uv about a package that needs another Python than the one that was resolved for."""


def resolve(request: InstallRequest) -> LockedServer:
    """Lock entry with the closure and the hash of every wheel for Linux.

    A package that `request.build` names and that has no wheel is locked by the hash of its source. Raises ConfigError
    if a package cannot be obtained.
    """
    who = f"server '{request.name}': resolve"
    extras = f"[{','.join(request.extras)}]" if request.extras else ""
    line = f"{request.package}{extras}" + (f"=={request.version}" if request.version else "")
    request, closure = resolve_fitting(who, [*(request.requirements or (line,)), *request.added], request)
    here = {p.name: p.version for p in closure.packages if applies(p.marker, closure.interpreter)}
    pinned = replace(request, requirements=tuple(_pin(text, here) for text in request.requirements))
    return LockedServer(
        name=request.name,
        runtime=request.runtime,
        package=request.package,
        version=here[canonicalize_name(request.package)],
        command=pinned.command(here[canonicalize_name(request.package)]),
        env=request.env,
        sdk_major=find_sdk_major(closure),
        python=closure.python,
        python_version=request.python,
        constraints=request.constraints,
        until=request.until,
        packages=closure.packages,
    )


def _pin(text: str, versions: Mapping[str, str]) -> str:
    """The requirement with the version that was found for it."""
    return text if "==" in text else f"{text}=={versions[canonicalize_name(Requirement(text).name)]}"


def find_release_day(request: InstallRequest, version: str) -> str:
    """End of the day on which the index got that version of the package; empty if the index does not say."""
    who = f"server '{request.name}': resolve"
    try:
        closure = resolve_closure(who, [f"{request.package}=={version}"], request)
    except ConfigError:
        return ""
    published = closure.published.get(canonicalize_name(request.package))
    if published is None:
        return ""
    return f"{datetime.fromisoformat(published).astimezone(UTC) + timedelta(days=1):%Y-%m-%dT00:00:00Z}"


def find_sdk_major(closure: Closure) -> int | None:
    """Major version of the MCP library among the packages; None if it is not there."""
    sdk = next((p for p in closure.packages if p.name == "mcp" and applies(p.marker, closure.interpreter)), None)
    return Version(sdk.version).major if sdk else None


def resolve_fitting(who: str, lines: Sequence[str], request: InstallRequest) -> tuple[InstallRequest, Closure]:
    """(request, closure of the requirements), for another interpreter if a package needs one and none was named.

    Raises ConfigError if there is no closure, or no such interpreter.
    """
    try:
        return request, resolve_closure(who, lines, request)
    except ConfigError as error:
        needs = _NEEDS_PYTHON.search(str(error))
        may_choose = request.runtime == "python" and not request.python
        version = choose_version(who, needs[1]) if needs is not None and may_choose else ""
        if not version:
            raise
    request = replace(request, python=version)
    return request, resolve_closure(who, lines, request)


def resolve_closure(who: str, lines: Sequence[str], request: InstallRequest) -> Closure:
    """Closure of the requirements, with packages built that `request.build` names and that have no wheel.

    After each build the closure is resolved again: a wheel may need more. Raises ConfigError.
    """
    if not lines:
        return Closure(packages=(), python="")
    chosen = interpreter_for(who, request.python) if request.python else None
    if request.build and chosen is not None and chosen != interpreter():
        raise ConfigError(
            f"{who}: --build with --python {request.python}: packages are built for the sandbox's own Python"
        )
    allowed: dict[str, str] = {canonicalize_name(Requirement(name).name): name for name in request.build}
    for wanted in map(Requirement, lines):
        own = canonicalize_name(wanted.name)
        if wanted.specifier and own in allowed:
            allowed[own] = f"{own}{wanted.specifier}"
    built: dict[str, LockedPackage] = {}
    with tempfile.TemporaryDirectory(prefix="gymcp-built-") as links:
        while True:
            try:
                closure = resolve_wheels(
                    who,
                    lines,
                    python=chosen,
                    links=Path(links) if built else None,
                    constraints=request.constraints,
                    until=request.until,
                )
            except NoWheel as error:
                if error.package in built:
                    raise
                if error.package not in allowed:
                    raise ConfigError(
                        f"{error}; nothing is built unasked: to build it in a sandbox add --build {error.package}"
                    ) from error
                package, wheel = build_package(who, allowed[error.package])
                shutil.copy(wheel, links)
                built[package.name] = package
            else:
                break
    packages = tuple(
        replace(built[package.name], marker=package.marker) if package.name in built else package
        for package in closure.packages
    )
    return replace(closure, packages=packages, interpreter=chosen)


def platform_name(server: LockedServer | None = None) -> str:
    """Name of the platform, on which installed files depend beside the lock. None: for the sandbox's Python."""
    chosen = server.python_version if server is not None else ""
    version = chosen or ".".join(map(str, interpreter().version))
    return f"{machine()}-cp{version.replace('.', '')}"


def install(server: LockedServer, folder: Path) -> None:
    """Install into an empty folder. Raises UsageError; IntegrityError if a file does not have its hash."""
    who = f"server '{server.name}': install"
    python = interpreter_for(who, server.python_version)
    version = ".".join(map(str, python.version))
    if not SpecifierSet(server.python).contains(version):
        raise ConfigError(
            f"{who}: locked for Python {server.python}, but it would run on {version}; run: {server.lock_command}"
        )
    venv = folder / "venv"
    with tempfile.TemporaryDirectory(prefix="gymcp-built-") as wheels:
        packages = [_build_if_needed(who, package, Path(wheels)) for package in server.packages]
        has_built = any(package.build is not None for package in server.packages)
        make_venv(who, venv, packages, links=Path(wheels) if has_built else None, python=python)
    _compile(who, venv, python)
    write_manifest(folder)


def read_version(server: LockedServer, folder: Path) -> str | None:
    """Version of the server's own package; None if it is not installed."""
    name = canonicalize_name(server.package).replace("-", "_")
    for info in folder.glob("venv/lib/python*/site-packages/*.dist-info"):
        package, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        if canonicalize_name(package).replace("-", "_") == name:
            return version
    return None


def argv_inside(server: LockedServer, folder: Path, program: str | None) -> tuple[str, ...]:
    """Command that starts the server in the sandbox. Raises ConfigError if the package has no such program."""
    inside = INSIDE / "venv" / "bin"
    script = _find_script(server, folder, program)
    native = is_native_program(folder / "venv" / "bin" / script)
    # -s -B, and a script instead of -m: nothing is imported from the working folder, which the agent can write to
    return (str(inside / script),) if native else (str(inside / "python"), "-s", "-B", str(inside / script))


def is_native_program(path: Path) -> bool:
    """True for a program of machine code, which no interpreter runs."""
    with path.open("rb") as file:
        return file.read(len(_ELF)) == _ELF


def _find_script(server: LockedServer, folder: Path, program: str | None) -> str:
    name = program or server.package
    scripts = folder / "venv" / "bin"
    if "/" not in name and (scripts / name).is_file() and name not in ("python", "python3"):
        return name
    have = _programs(server.package, folder)
    if program is None and len(have) == 1:
        return have[0]
    raise ConfigError(
        f"server '{server.name}': install: package '{server.package}' has no program '{name}'; "
        f"have {', '.join(have) or 'none'}" + (f" (uvx --from {server.package} PROGRAM)" if have else "")
    )


def _programs(package: str, folder: Path) -> list[str]:
    """Console scripts of the package, read from its metadata.

    The virtualenv's own interpreter is not asked, because when it starts it may run code of the packages in it.
    """
    packages = [str(path) for path in folder.glob("venv/lib/python*/site-packages")]
    for distribution in importlib.metadata.distributions(name=package, path=packages):
        return sorted(entry.name for entry in distribution.entry_points if entry.group == "console_scripts")
    return []


def _build_if_needed(who: str, package: LockedPackage, links: Path) -> LockedPackage:
    """The package as it can be installed: one that must be built is built, and its wheel copied to `links`."""
    if package.build is None or not applies(package.marker):
        return package
    wheel = ensure_wheel(who, package)
    shutil.copy(wheel, links)
    return package_of_wheel(package, wheel)


def _compile(who: str, venv: Path, python: Interpreter) -> None:
    """Compile byte code beside the sources. It is never checked against them again: the sandbox mounts it read-only."""
    packages = next(venv.glob("lib/python*/site-packages"))
    argv = [str(python.path), "-I", "-S", "-m", "compileall", "-q", "-j", str(min(4, os.cpu_count() or 1))]
    argv += ["--invalidation-mode", "unchecked-hash", "-s", str(venv), "-p", str(INSIDE / "venv"), str(packages)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode not in (0, 1):  # 1: some file of a package is not for this version of Python
        raise UsageError(f"{who}: byte code cannot be made: {last_words(done.stderr)}")
