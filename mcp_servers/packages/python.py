"""Servers from a Python package index: resolved and installed by uv, as wheels, into a virtualenv of their own.

The virtualenv is for the sandbox's interpreter and works at another place than where it was made: inside it is mounted.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from gymcp.errors import ConfigError, UsageError
from gymcp.mcp_servers.packages.commands import Wanted
from gymcp.mcp_servers.packages.install_folder import INSIDE, last_words, machine, write_manifest
from gymcp.mcp_servers.packages.lockfile import LockedPackage, LockedServer
from gymcp.mcp_servers.packages.sdists import build_package, built_wheel, wheel_package
from gymcp.mcp_servers.packages.wheels import Closure, NoWheel, applies, make_venv, resolve_wheels
from gymcp.mcp_servers.sandbox import interpreter

_ELF = b"\x7fELF"


def resolve(wanted: Wanted) -> LockedServer:
    """The closure with the hash of every wheel for Linux; of what `wanted.build` names and has none, of its source.

    Raises ConfigError where something is not to be had.
    """
    who = f"server '{wanted.name}': resolve"
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    line = f"{wanted.package}{extras}" + (f"=={wanted.version}" if wanted.version else "")
    closure, built = _resolve_and_build(who, line, wanted)
    packages = tuple(
        replace(built[package.name], marker=package.marker) if package.name in built else package
        for package in closure.packages
    )
    own = next(p for p in packages if p.name == canonicalize_name(wanted.package) and applies(p.marker))
    sdk = next((p for p in packages if p.name == "mcp" and applies(p.marker)), None)
    return LockedServer(
        name=wanted.name,
        runtime="python",
        package=wanted.package,
        version=own.version,
        command=wanted.command(own.version),
        env=wanted.env,
        sdk_major=Version(sdk.version).major if sdk else None,
        python=closure.python,
        packages=packages,
    )


def _resolve_and_build(who: str, line: str, wanted: Wanted) -> tuple[Closure, dict[str, LockedPackage]]:
    """The closure, and what of it was built. A wheel that was built may need more, so it is resolved anew."""
    own: str = canonicalize_name(wanted.package)
    allowed: dict[str, str] = {canonicalize_name(Requirement(name).name): name for name in wanted.build}
    if wanted.version and own in allowed:
        allowed[own] = f"{own}=={wanted.version}"
    built: dict[str, LockedPackage] = {}
    with tempfile.TemporaryDirectory(prefix="gymcp-built-") as links:
        while True:
            try:
                return resolve_wheels(who, [line], links=Path(links) if built else None), built
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


def platform_name() -> str:
    """What the installed files depend on beside the lock."""
    major, minor = interpreter().version
    return f"{machine()}-cp{major}{minor}"


def install(server: LockedServer, folder: Path) -> None:
    """Fills an empty folder. Raises UsageError; IntegrityError where a file does not have its hash."""
    who = f"server '{server.name}': install"
    version = ".".join(map(str, interpreter().version))
    if not SpecifierSet(server.python).contains(version):
        raise ConfigError(
            f"{who}: locked for Python {server.python}, but the sandbox has {version}; run: "
            f"gymcp servers lock {server.name}"
        )
    venv = folder / "venv"
    with tempfile.TemporaryDirectory(prefix="gymcp-built-") as made:
        packages = [_installable(who, package, Path(made)) for package in server.packages]
        built = any(package.build is not None for package in server.packages)
        make_venv(who, venv, packages, links=Path(made) if built else None)
    _compile(who, venv)
    write_manifest(folder)


def installed_version(server: LockedServer, folder: Path) -> str | None:
    """Of the server's own package; None where it is not there."""
    name = canonicalize_name(server.package).replace("-", "_")
    for info in folder.glob("venv/lib/python*/site-packages/*.dist-info"):
        found, _, version = info.name.removesuffix(".dist-info").rpartition("-")
        if canonicalize_name(found).replace("-", "_") == name:
            return version
    return None


def argv_inside(server: LockedServer, folder: Path, program: str | None) -> tuple[str, ...]:
    """How to start the server in the sandbox. Raises ConfigError where the package has no such program."""
    inside = INSIDE / "venv" / "bin"
    script = _script(server, folder, program)
    with (folder / "venv" / "bin" / script).open("rb") as file:
        native = file.read(len(_ELF)) == _ELF
    # -s -B, and a script instead of -m: nothing is imported from the working folder, which the agent can write to
    return (str(inside / script),) if native else (str(inside / "python"), "-s", "-B", str(inside / script))


def _script(server: LockedServer, folder: Path, program: str | None) -> str:
    wanted = program or server.package
    scripts = folder / "venv" / "bin"
    if "/" not in wanted and (scripts / wanted).is_file() and wanted not in ("python", "python3"):
        return wanted
    have = _programs(server.package, folder)
    if program is None and len(have) == 1:
        return have[0]
    raise ConfigError(
        f"server '{server.name}': install: package '{server.package}' has no program '{wanted}'; "
        f"have {', '.join(have) or 'none'}" + (f" (uvx --from {server.package} PROGRAM)" if have else "")
    )


def _programs(package: str, folder: Path) -> list[str]:
    """Read, not asked for: an interpreter that starts in the virtualenv may run code of the packages in it."""
    packages = [str(path) for path in folder.glob("venv/lib/python*/site-packages")]
    for found in importlib.metadata.distributions(name=package, path=packages):
        return sorted(entry.name for entry in found.entry_points if entry.group == "console_scripts")
    return []


def _installable(who: str, package: LockedPackage, links: Path) -> LockedPackage:
    """What is built gives a wheel to install, in the folder `links`."""
    if package.build is None or not applies(package.marker):
        return package
    wheel = built_wheel(who, package)
    shutil.copy(wheel, links)
    return wheel_package(package, wheel)


def _compile(who: str, venv: Path) -> None:
    """Byte code beside the sources, never checked against them again: inside the folder is read-only."""
    packages = next(venv.glob("lib/python*/site-packages"))
    argv = [str(interpreter().path), "-I", "-S", "-m", "compileall", "-q", "-j", str(min(4, os.cpu_count() or 1))]
    argv += ["--invalidation-mode", "unchecked-hash", "-s", str(venv), "-p", str(INSIDE / "venv"), str(packages)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode not in (0, 1):  # 1: some file of a package is not for this version of Python
        raise UsageError(f"{who}: byte code cannot be made: {last_words(done.stderr)}")
