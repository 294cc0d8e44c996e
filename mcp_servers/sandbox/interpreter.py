"""The Python interpreter that servers run on: never the harness's virtualenv, and without any installed package."""

from __future__ import annotations

import functools
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.mcp_servers.sandbox.spec import Mount
from gymcp.paths import gymcp_home

MIN_VERSION = (3, 9)
"""Oldest Python that servers run on."""
_SYSTEM = Path("/usr/bin/python3")
_PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    path: PurePosixPath
    """Executable: the same path on the host and inside the sandbox."""
    version: tuple[int, int]
    mounts: tuple[Mount, ...]
    """Mounts beyond what the sandbox shows of /usr; empty for the system's own Python."""
    masks: tuple[PurePosixPath, ...]
    """Folders below the mounts that must look empty."""

    def show(self) -> tuple[Mount, ...]:
        """Mounts that show the interpreter to a sandbox whose own it is not."""
        return (*self.mounts, *(Mount(source=_empty_folder(), target=mask) for mask in self.masks))


@functools.cache
def interpreter() -> Interpreter:
    """The system's Python if it is new enough, else the one this process runs on, without its virtualenv."""
    if _SYSTEM.exists() and (version := _version(_SYSTEM)) >= MIN_VERSION:
        return Interpreter(path=PurePosixPath(_SYSTEM), version=version, mounts=(), masks=())
    return own_interpreter()


def own_interpreter() -> Interpreter:
    """This process's interpreter from `sys.base_prefix`: executable, standard library, and the libraries beside it."""
    return interpreter_at(Path(sys.base_prefix), (sys.version_info.major, sys.version_info.minor))


def interpreter_at(prefix: Path, version: tuple[int, int]) -> Interpreter:
    """The interpreter that is installed below a prefix. That of /usr needs no mounts."""
    executable = prefix / "bin" / f"python{version[0]}.{version[1]}"
    if prefix == _SYSTEM.parents[1]:
        return Interpreter(path=PurePosixPath(executable), version=version, mounts=(), masks=())
    folders = [
        prefix / name for name in ("lib", "lib64") if (prefix / name).is_dir() and not (prefix / name).is_symlink()
    ]
    return Interpreter(
        path=PurePosixPath(executable),
        version=version,
        mounts=tuple(Mount(source=path, target=PurePosixPath(path)) for path in (executable, *folders)),
        masks=tuple(PurePosixPath(path) for folder in folders for path in package_folders(folder)),
    )


@functools.cache
def _empty_folder() -> Path:
    folder = gymcp_home() / "empty"
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)
    return folder


def package_folders(below: Path) -> Iterator[Path]:
    """Folders of installed packages at any depth; links are not followed."""
    for folder, children, _ in os.walk(below):
        yield from (Path(folder, child) for child in children if child in _PACKAGES)
        children[:] = [child for child in children if child not in _PACKAGES]


def harness_paths() -> tuple[Path, ...]:
    """Paths that no server may read: this process's virtualenv, packages and import path, but the standard library."""
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {path / "lib-dynload" for path in standard}
    imported = [Path(entry) for entry in sys.path if entry and Path(entry).is_absolute()]
    imported += [Path(__file__).parents[2], Path(__file__).resolve().parents[2]]  # the package, and its links' target
    if sys.prefix != sys.base_prefix:
        imported.append(Path(sys.prefix))
    existing = [path for entry in imported for path in (entry, entry.resolve()) if path.exists()]
    return tuple(dict.fromkeys(path for path in existing if path not in standard))


def _version(executable: Path) -> tuple[int, int]:
    match = re.search(r"(\d+)\.(\d+)$", executable.resolve().name)  # python3.11: the name usually tells
    if match is None:
        answer = subprocess.run([executable, "-V"], capture_output=True, text=True, timeout=30, check=False).stdout
        match = re.search(r"(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)
