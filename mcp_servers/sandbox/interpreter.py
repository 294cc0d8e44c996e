"""The Python that servers run on: never the harness's virtualenv, and without any installed package."""

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

OLDEST = (3, 9)
_SYSTEM = Path("/usr/bin/python3")
_PACKAGES = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    path: PurePosixPath
    """The same inside and outside."""
    version: tuple[int, int]
    mounts: tuple[Mount, ...]
    """Beyond what the sandbox shows of /usr; none for the system's own."""
    masks: tuple[PurePosixPath, ...]
    """Folders below the mounts that must look empty."""


@functools.cache
def interpreter() -> Interpreter:
    """The system's Python where it is new enough, else the one this process runs on, out of its virtualenv."""
    if _SYSTEM.exists() and (version := _version(_SYSTEM)) >= OLDEST:
        return Interpreter(path=PurePosixPath(_SYSTEM), version=version, mounts=(), masks=())
    return own_interpreter()


def own_interpreter() -> Interpreter:
    """This process's, from `sys.base_prefix`: the executable, the standard library, and the libraries beside it."""
    prefix = Path(sys.base_prefix)
    version = (sys.version_info.major, sys.version_info.minor)
    executable = prefix / "bin" / f"python{version[0]}.{version[1]}"
    folders = [
        prefix / name for name in ("lib", "lib64") if (prefix / name).is_dir() and not (prefix / name).is_symlink()
    ]
    return Interpreter(
        path=PurePosixPath(executable),
        version=version,
        mounts=tuple(Mount(source=path, target=PurePosixPath(path)) for path in (executable, *folders)),
        masks=tuple(PurePosixPath(path) for folder in folders for path in package_folders(folder)),
    )


def package_folders(below: Path) -> Iterator[Path]:
    """Where installed packages lie, down to any depth; links are not followed."""
    for folder, children, _ in os.walk(below):
        found = [child for child in children if child in _PACKAGES]
        yield from (Path(folder, child) for child in found)
        children[:] = [child for child in children if child not in _PACKAGES]


def harness_paths() -> tuple[Path, ...]:
    """This process's virtualenv, packages and import path, without the standard library: what no server may read."""
    standard = {Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")}
    standard |= {path / "lib-dynload" for path in standard}
    found = [Path(entry) for entry in sys.path if entry and Path(entry).is_absolute()]
    found += [Path(__file__).parents[2], Path(__file__).resolve().parents[2]]  # the package, and where its links lead
    if sys.prefix != sys.base_prefix:
        found.append(Path(sys.prefix))
    every = [path for entry in found for path in (entry, entry.resolve()) if path.exists()]
    return tuple(dict.fromkeys(path for path in every if path not in standard))


def _version(executable: Path) -> tuple[int, int]:
    match = re.search(r"(\d+)\.(\d+)$", executable.resolve().name)  # python3.11: most often no need to ask
    if match is None:
        answer = subprocess.run([executable, "-V"], capture_output=True, text=True, timeout=30, check=False).stdout
        match = re.search(r"(\d+)\.(\d+)", answer)
    return (int(match[1]), int(match[2])) if match else (0, 0)
