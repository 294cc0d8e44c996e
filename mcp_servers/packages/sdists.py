"""Wheels of packages that have only a source distribution: fetched as files, built in a sandbox, cached by content."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import tomllib
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from gymcp.atomic import make_once, write_atomically
from gymcp.errors import ConfigError, IntegrityError, UsageError
from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.packages.builds import build_sandbox, read_written, run_build
from gymcp.mcp_servers.packages.install_folder import find_uv, machine, run_tool
from gymcp.mcp_servers.packages.lockfile import LockedPackage, content_of
from gymcp.mcp_servers.packages.wheels import make_venv, resolve_wheels
from gymcp.mcp_servers.programs import build_wheel as program
from gymcp.mcp_servers.sandbox import Mount, Sandbox, interpreter
from gymcp.paths import gymcp_home
from gymcp.scratch import scratch_folder

REVISION = 1
"""Number that is raised whenever the same source would be built differently than before."""
MAX_SDIST_BYTES = 500_000_000
MAX_WHEEL_BYTES = 500_000_000
_MAX_TEXT_BYTES = 1_000_000
_DOWNLOAD_TIMEOUT_S = 60.0
_INSIDE = PurePosixPath("/srv/build")
_SETUPTOOLS = ("setuptools>=40.8.0",)
"""Build requirements that PEP 517 assumes for a package that names none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sdist:
    name: str
    version: str
    url: str
    sha256: str

    @property
    def filename(self) -> str:
        return PurePosixPath(urllib.parse.unquote(urllib.parse.urlsplit(self.url).path)).name


def build_package(who: str, requirement: str, *, sandbox: Sandbox | None = None) -> tuple[LockedPackage, Path]:
    """(lock entry, wheel) for ``NAME`` or ``NAME==VERSION``: resolved, fetched and built, once per content.

    Raises ConfigError if the package has no source, UsageError if it cannot be built.
    """
    sdist = _locate(who, requirement)
    archive = _fetch(who, sdist)
    sandbox = sandbox or build_sandbox(who)
    with _BuildFolder(who, archive, sandbox) as folder:
        settings = folder.read_settings()
        lines = _check_requirements(who, settings.get("requires", _SETUPTOOLS))
        needed = resolve_wheels(f"{who}: to build '{sdist.name}'", lines).packages if lines else ()
        more = folder.ask_requirements(settings, needed)
        if more:
            needed = resolve_wheels(f"{who}: to build '{sdist.name}'", [*lines, *more]).packages
    files = {sdist.filename: f"sha256:{sdist.sha256}"}
    package = LockedPackage(name=sdist.name, version=sdist.version, files=files, build=tuple(needed))
    return package, ensure_wheel(who, package, sandbox=sandbox)


def ensure_wheel(who: str, package: LockedPackage, *, sandbox: Sandbox | None = None) -> Path:
    """Wheel of a locked package that must be built: from the cache, or built now from the locked source and tools.

    Raises IntegrityError if the index has another source than the lock, UsageError if it cannot be built.
    """
    ((filename, sha256),) = package.files.items()

    def make(folder: Path) -> None:
        archive = _sdists() / sha256.removeprefix("sha256:") / filename
        if not archive.is_file():
            sdist = _locate(who, f"{package.name}=={package.version}")
            if f"sha256:{sdist.sha256}" != sha256:
                raise IntegrityError(
                    f"{who}: source of '{package.name}' {package.version}: expected {sha256}, the index has "
                    f"sha256:{sdist.sha256}"
                )
            archive = _fetch(who, sdist)
        with _BuildFolder(who, archive, sandbox or build_sandbox(who)) as build:
            name, content = build.build_wheel(build.read_settings(), package.build or ())
        _check_name(who, name, package)
        (folder / name).write_bytes(content)

    key = digest([REVISION, machine(), list(interpreter().version), content_of(package)])
    folder = make_once(gymcp_home() / "builds" / f"{package.name}-{package.version}-{key[:16]}", make)
    return next(folder.glob("*.whl"))


def package_of_wheel(package: LockedPackage, wheel: Path) -> LockedPackage:
    """The same package with the wheel that was built here as its file, to be installed by that wheel's hash."""
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return LockedPackage(
        name=package.name, version=package.version, files={wheel.name: f"sha256:{sha256}"}, marker=package.marker
    )


class _BuildFolder:
    """Folder in which one source is built. Each step runs in a sandbox of its own."""

    def __init__(self, who: str, archive: Path, sandbox: Sandbox) -> None:
        self._who = who
        self._archive = archive
        self._sandbox = sandbox

    def __enter__(self) -> _BuildFolder:
        parent = gymcp_home() / "builds"
        parent.mkdir(parents=True, exist_ok=True)
        self._root = Path(tempfile.mkdtemp(prefix=".build-", dir=parent))
        self._folder = self._root / "workspace"
        self._folder.mkdir()
        (self._root / "program.py").write_bytes(Path(str(program.__file__)).read_bytes())
        inside = _INSIDE / self._archive.name
        self._run("python3", "unpack", str(inside), Mount(source=self._archive, target=inside))
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._root, ignore_errors=True)

    def read_settings(self) -> dict[str, Any]:
        """Table ``[build-system]`` of pyproject.toml; empty if there is none."""
        path = self._folder / "pyproject.toml"
        if not path.is_symlink() and not path.exists():
            return {}
        try:
            table = tomllib.loads(read_written(path, _MAX_TEXT_BYTES).decode()).get("build-system", {})
        except ValueError as error:
            raise ConfigError(f"{self._who}: pyproject.toml of '{self._archive.name}': {error}") from error
        return dict(table) if isinstance(table, dict) else {}

    def ask_requirements(self, settings: Mapping[str, Any], packages: Sequence[LockedPackage]) -> list[str]:
        """Requirements that the build backend asks for in addition to those that the package names."""
        self._run_hook("requires", settings, packages)
        lines = json.loads(read_written(self._folder / "requires.json", _MAX_TEXT_BYTES))
        return _check_requirements(self._who, lines)

    def build_wheel(self, settings: Mapping[str, Any], packages: Sequence[LockedPackage]) -> tuple[str, bytes]:
        """(name, content) of the wheel."""
        self._run_hook("wheel", settings, packages)
        names = [name for name in os.listdir(self._folder) if name.endswith(".whl")]  # noqa: PTH208 (names, nothing followed)
        if len(names) != 1:
            raise UsageError(f"{self._who}: the build of '{self._archive.name}' left {len(names)} wheels, not one")
        return names[0], read_written(self._folder / names[0], MAX_WHEEL_BYTES)

    def _run_hook(self, step: str, settings: Mapping[str, Any], packages: Sequence[LockedPackage]) -> None:
        venv = self._root / digest([content_of(package) for package in packages])[:16] / "venv"
        if not venv.is_dir():
            venv.parent.mkdir()
            make_venv(f"{self._who}: to build", venv, packages)
        inside = _INSIDE / "venv"
        self._run(str(inside / "bin" / "python"), step, json.dumps(settings), Mount(source=venv, target=inside))

    def _run(self, python: str, step: str, argument: str, mount: Mount) -> None:
        inside = _INSIDE / "program.py"
        mounts = (mount, Mount(source=self._root / "program.py", target=inside))
        who = f"{self._who}: building '{self._archive.name}' ({step})"
        env = {"PATH": f"{_INSIDE}/venv/bin:/usr/bin:/bin"}
        argv = (python, "-s", "-B", str(inside), step, argument)
        run_build(who, argv, self._folder, sandbox=self._sandbox, mounts=mounts, env=env)


def _locate(who: str, requirement: str) -> Sdist:
    """Name, URL and hash of the source. uv is told that the package needs nothing, so it need not run its code."""
    name = canonicalize_name(Requirement(requirement).name)
    with tempfile.TemporaryDirectory(prefix="resolve-", dir=scratch_folder()) as path:
        folder = Path(path)
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "x"\nversion = "1"\n[[tool.uv.dependency-metadata]]\nname = "{name}"\n'
            "requires-dist = []\n",
            encoding="utf-8",
        )
        argv = [find_uv(who), "pip", "compile", "--quiet", "--no-deps", "--universal", "--no-header"]
        argv += ["--python", str(interpreter().path), "--format", "pylock.toml", "-"]
        try:
            content = tomllib.loads(run_tool(argv, who, cwd=folder, stdin=f"{requirement}\n"))
        except UsageError as error:
            raise ConfigError(str(error)) from error
    row = content["packages"][0]
    if "sdist" not in row:
        raise ConfigError(f"{who}: package '{name}' {row.get('version', '')} has no source to build a wheel from")
    source = row["sdist"]
    url = source.get("url") or Path(source["path"]).absolute().as_uri()
    return Sdist(name=name, version=row["version"], url=url, sha256=source["hashes"]["sha256"])


def _fetch(who: str, sdist: Sdist) -> Path:
    path = _sdists() / sdist.sha256 / sdist.filename
    if path.is_file():
        return path
    try:
        with urllib.request.urlopen(sdist.url, timeout=_DOWNLOAD_TIMEOUT_S) as answer:
            content = answer.read(MAX_SDIST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{who}: source of '{sdist.name}' {sdist.version} cannot be fetched: {error}") from error
    sha256 = hashlib.sha256(content).hexdigest()
    if sha256 != sdist.sha256:
        raise IntegrityError(f"{who}: source of '{sdist.name}': expected sha256:{sdist.sha256}, found sha256:{sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, content)
    return path


def _check_requirements(who: str, lines: object) -> list[str]:
    """The lines, if all are plain requirements.

    A line comes from a package, so it must not become an option of the installer or name a URL to fetch from. Raises
    ConfigError.
    """
    if not isinstance(lines, list | tuple) or not all(isinstance(line, str) for line in lines):
        raise ConfigError(f"{who}: what it needs to be built is not a list of texts")
    for line in lines:
        try:
            url = Requirement(line).url
        except InvalidRequirement as error:
            raise ConfigError(f"{who}: what it needs to be built is malformed: {line!r}") from error
        if url or "\n" in line:
            raise ConfigError(f"{who}: to be built it needs {line!r}, which is not from a package index")
    return list(lines)


def _check_name(who: str, name: str, package: LockedPackage) -> None:
    try:
        package_name, version, *_ = parse_wheel_filename(name)
    except InvalidWheelFilename as error:
        raise IntegrityError(f"{who}: the build of '{package.name}' left {name!r}, which is no wheel") from error
    if (package_name, str(version)) != (package.name, package.version):
        raise IntegrityError(f"{who}: the build of '{package.name}' {package.version} left {name!r}")


def _sdists() -> Path:
    return gymcp_home() / "sdists"
