"""Servers from a Python package index: resolved and installed by uv, wheels only, into a virtualenv of their own.

The virtualenv is for the sandbox's interpreter and works at another place than where it was made: inside it is mounted.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import tempfile
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.markers import Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version
from uv import find_uv_bin

from gymcp.errors import ConfigError, IntegrityError, UsageError
from gymcp.mcp_servers.installs.commands import Wanted
from gymcp.mcp_servers.installs.folders import INSIDE, last_words, machine, run_tool, write_manifest
from gymcp.mcp_servers.leftovers import scratch_folder
from gymcp.mcp_servers.lockfile import LockedPackage, LockedServer
from gymcp.mcp_servers.sandbox import interpreter

OLDEST = (3, 10)
"""Of the Pythons that a lock serves where the packages allow; the SDK needs it."""
_ELF = b"\x7fELF"
_NO_WHEEL = re.compile(r"no (usable |compatible )?wheels?|building is disabled|source distribution", re.IGNORECASE)
_NO_BUILD = "gymcp takes wheels only: building in a sandbox is not there yet"
_SYSTEMS = ("manylinux", "linux")
_LIST_SCRIPTS = """
import importlib.metadata, json, sys
found = next(importlib.metadata.distributions(name=sys.argv[1], path=sys.argv[2:]))
print(json.dumps([entry.name for entry in found.entry_points if entry.group == "console_scripts"]))
"""


def resolve(wanted: Wanted) -> LockedServer:
    """The closure with the hash of every wheel for Linux. Raises ConfigError where there is none."""
    who = f"server '{wanted.name}': resolve"
    extras = f"[{','.join(wanted.extras)}]" if wanted.extras else ""
    line = f"{wanted.package}{extras}" + (f"=={wanted.version}" if wanted.version else "")
    with tempfile.TemporaryDirectory(prefix="resolve-", dir=scratch_folder()) as made:
        answer = Path(made) / "pylock.toml"
        argv = [find_uv_bin(), "pip", "compile", "--quiet", "--universal", "--only-binary", ":all:", "--no-header"]
        argv += ["--python", str(interpreter().path), "--format", "pylock.toml", "-o", str(answer), "-"]
        try:
            _resolve_widely(argv, who, line)
        except UsageError as error:
            hint = f"; {_NO_BUILD}" if _NO_WHEEL.search(str(error)) else ""
            raise ConfigError(f"{error}{hint}") from error
        content = tomllib.loads(answer.read_text(encoding="utf-8"))
    found = (_locked_package(who, row) for row in content["packages"])
    packages = tuple(package for package in found if package is not None)
    own = next(p for p in packages if p.name == canonicalize_name(wanted.package) and _applies(p.marker))
    sdk = next((p for p in packages if p.name == "mcp" and _applies(p.marker)), None)
    return LockedServer(
        name=wanted.name,
        runtime="python",
        package=wanted.package,
        version=own.version,
        command=wanted.command(own.version),
        env=wanted.env,
        sdk_major=Version(sdk.version).major if sdk else None,
        python=content.get("requires-python", ""),
        packages=packages,
    )


def _resolve_widely(argv: list[str], who: str, line: str) -> None:
    """For older Pythons too where that can be: a lock made here is to serve other machines. Else from this one on."""
    if interpreter().version > OLDEST:
        with contextlib.suppress(UsageError):
            run_tool([*argv, "--python-version", ".".join(map(str, OLDEST))], who, stdin=line + "\n")
            return
    run_tool(argv, who, stdin=line + "\n")


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
    uv, python = find_uv_bin(), str(interpreter().path)
    venv = folder / "venv"
    run_tool([uv, "venv", "--quiet", "--relocatable", "--no-project", "--python", python, str(venv)], who)
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(map(_requirement, server.packages)), encoding="utf-8")
    argv = [uv, "pip", "install", "--quiet", "--python", str(venv / "bin" / "python"), "--no-deps", "--require-hashes"]
    argv += ["--only-binary", ":all:", "--link-mode", "copy", "-r", str(requirements)]
    try:
        run_tool(argv, who, cwd=folder)
    except UsageError as error:
        if "hash mismatch" in str(error).lower():
            raise IntegrityError(f"{error}; the index has other files than the lock") from error
        raise
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
    # -S: a package's .pth files would run, and this is not in the sandbox
    packages = map(str, folder.glob("venv/lib/python*/site-packages"))
    argv = [str(interpreter().path), "-I", "-S", "-c", _LIST_SCRIPTS, server.package, *packages]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    have = sorted(json.loads(done.stdout)) if done.returncode == 0 else []
    if program is None and len(have) == 1:
        return str(have[0])
    raise ConfigError(
        f"server '{server.name}': install: package '{server.package}' has no program '{wanted}'; "
        f"have {', '.join(have) or 'none'}" + (f" (uvx --from {server.package} PROGRAM)" if have else "")
    )


def _locked_package(who: str, row: Mapping[str, Any]) -> LockedPackage | None:
    """None for what is there for other systems only."""
    files = {}
    for wheel in row.get("wheels", ()):
        place = wheel.get("name") or wheel.get("url") or wheel.get("path")
        name = urllib.parse.unquote(PurePosixPath(urllib.parse.urlsplit(place).path).name)
        if _for_linux(name):
            files[name] = f"sha256:{wheel['hashes']['sha256']}"
    marker = row.get("marker", "")
    if not files and not _applies(marker):
        return None
    if not files:
        raise ConfigError(
            f"{who}: package '{row['name']}' {row.get('version', '')} has no wheel for Linux; {_NO_BUILD}"
        )
    return LockedPackage(name=canonicalize_name(row["name"]), version=row["version"], files=files, marker=marker)


def _applies(marker: str) -> bool:
    """On this machine, with the sandbox's Python."""
    version = ".".join(map(str, interpreter().version))
    here = {"python_version": version, "python_full_version": f"{version}.0", "implementation_version": f"{version}.0"}
    return not marker or Marker(marker).evaluate(here)


def _for_linux(filename: str) -> bool:
    """For CPython on a usual Linux; a lock with every wheel there is would be five times as long."""
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
    marker = f" ; {package.marker}" if package.marker else ""
    hashes = "".join(f" --hash={found}" for found in package.files.values())
    return f"{package.name}=={package.version}{marker}{hashes}\n"


def _compile(who: str, venv: Path) -> None:
    """Byte code beside the sources, never checked against them again: inside the folder is read-only."""
    packages = next(venv.glob("lib/python*/site-packages"))
    argv = [str(interpreter().path), "-I", "-S", "-m", "compileall", "-q", "-j", str(min(4, os.cpu_count() or 1))]
    argv += ["--invalidation-mode", "unchecked-hash", "-s", str(venv), "-p", str(INSIDE / "venv"), str(packages)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode not in (0, 1):  # 1: some file of a package is not for this version of Python
        raise UsageError(f"{who}: byte code cannot be made: {last_words(done.stderr)}")
