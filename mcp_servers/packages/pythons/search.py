"""Python interpreters of this machine: on PATH, of pyenv, and those that uv has installed."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

from gymcp.mcp_servers.sandbox import Interpreter
from gymcp.mcp_servers.sandbox.interpreter import MIN_VERSION, interpreter_at
from gymcp.paths import gymcp_home

KNOWN_VERSIONS = tuple((3, minor) for minor in range(MIN_VERSION[1], 31))
"""Versions of Python that are looked for; the last ones do not exist yet."""
PROBE_TIMEOUT_S = 20.0
_PROBE = "import json, sys; print(json.dumps([sys.base_prefix, *sys.version_info[:2], sys.implementation.name]))"
_UV_NAME = re.compile(r"cpython-(3\.\d+)\.\d+-linux-[\w-]+")


def find_interpreter(version: tuple[int, int]) -> Interpreter | None:
    """CPython of that version, ready to be shown to a sandbox; None if this machine has none that starts."""
    name = f"python{version[0]}.{version[1]}"
    for path in _candidates(name):
        prefix = _probe(path, version)
        if prefix is not None and (prefix / "bin" / name).is_file():
            return interpreter_at(prefix, version)
    return None


def list_versions() -> list[tuple[int, int]]:
    """Versions, from the oldest that servers run on, of which a program of that name is on this machine."""
    return [version for version in KNOWN_VERSIONS if next(_candidates(f"python{version[0]}.{version[1]}"), None)]


def pythons_folder() -> Path:
    """Folder of the interpreters that were fetched for servers."""
    return gymcp_home() / "pythons"


def list_fetched() -> dict[Path, str]:
    """Folder of each interpreter that was fetched for servers -> its version, such as 3.12."""
    folders = sorted(pythons_folder().glob("cpython-3.*"))
    versions = {path: match[1] for path in folders if (match := _UV_NAME.match(path.name))}
    return {path: version for path, version in versions.items() if path.is_dir() and not path.is_symlink()}


def find_fetched_folder(python: Interpreter) -> Path | None:
    """Folder of an interpreter that was fetched for servers; None for any other."""
    folder = Path(python.path).parents[1]
    return folder if folder.parent.resolve() == pythons_folder().resolve() else None


def _candidates(name: str) -> Iterator[Path]:
    """Programs of that name: on PATH, of pyenv, of uv, and fetched for servers."""
    home = Path.home()
    pyenv = Path(os.environ.get("PYENV_ROOT") or home / ".pyenv")
    data = Path(os.environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    of_uv = Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    folders = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if Path(entry).is_absolute()]
    folders += [path / "bin" for path in sorted((pyenv / "versions").glob("3.*"), reverse=True)]
    for root in (of_uv, pythons_folder()):
        folders += [
            path / "bin" for path in sorted(root.glob("cpython-3.*"), reverse=True) if _UV_NAME.match(path.name)
        ]
    for folder in dict.fromkeys(folders):
        path = folder / name
        if path.is_file() and os.access(path, os.X_OK):
            yield path


def _probe(path: Path, version: tuple[int, int]) -> Path | None:
    """Prefix of the interpreter; None if the program does not start, or is no CPython of that version.

    A shim of pyenv starts only if its version is selected.
    """
    try:
        done = subprocess.run(
            [path, "-I", "-S", "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
        prefix, major, minor, kind = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return Path(prefix) if (major, minor, kind) == (*version, "cpython") else None
