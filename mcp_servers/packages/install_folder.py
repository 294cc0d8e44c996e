"""Installed servers as folders: made once, with a list of every file and its hash."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from gymcp.errors import IntegrityError, UsageError
from gymcp.mcp_servers.digest import digest
from gymcp.paths import gymcp_home
from gymcp.process_owner import environment_with_owner, lock_folder

INSIDE = PurePosixPath("/srv/server")
"""Where an installed folder appears in the sandbox."""
MANIFEST = "installed.json"
TIMEOUT_S = 900.0
_NOISE = ("npm warn", "npm notice", "warning:", "A complete log of this run")
_INSTALLER_RECORDS = ("RECORD", "INSTALLER", "REQUESTED", "uv_cache.json")
_HARNESS_VARIABLES = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "UV_PROJECT_ENVIRONMENT")


class InstallDrift(IntegrityError):
    """What is in a folder is not what was installed there: it can be made anew."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


_held: dict[tuple[Path, int], int] = {}


def hold(folder: Path) -> None:
    """As long as this process lives, or until `let_go`, nobody removes the folder. Raises FileNotFoundError."""
    key = (folder, os.getpid())
    if key not in _held:
        _held[key] = lock_folder(folder)


def let_go(folder: Path) -> None:
    """Harmless where it is not held."""
    handle = _held.pop((folder, os.getpid()), None)
    if handle is not None:
        os.close(handle)


def servers_folder() -> Path:
    """Where installed servers lie."""
    return gymcp_home() / "servers"


def machine() -> str:
    """What compiled files depend on."""
    return f"{platform.system().lower()}-{platform.machine()}"


def write_manifest(folder: Path) -> None:
    """Lists what is in the folder now."""
    (folder / MANIFEST).write_text(json.dumps(dict(sorted(hash_files(folder).items())), indent=0), encoding="utf-8")


def check_files(folder: Path, who: str, mend: str) -> Mapping[str, str]:
    """Hashes by relative path, all as they were installed. Raises InstallDrift, naming the first file that is not.

    `mend`: the command that installs it again.
    """

    def drifted(what: str) -> InstallDrift:
        return InstallDrift(f"{who}: {what}; run: {mend}, or remove {folder}", folder)

    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise drifted(f"{MANIFEST} cannot be read: {error}") from error
    found = hash_files(folder)
    for path in sorted(listed.keys() | found.keys()):
        if path not in found:
            raise drifted(f"installed file '{path}' is gone")
        if path not in listed:
            raise drifted(f"file '{path}' was not installed")
        if found[path] != listed[path]:
            raise drifted(f"installed file '{path}' has changed")
    return found


def hash_files(folder: Path) -> dict[str, str]:
    """sha256 by relative path; of a link where it leads. The manifest itself is left out."""
    found = {}
    for path in _files(folder):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = f"link {path.readlink()}"
        elif name != MANIFEST:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def tree_digest(files: Mapping[str, str]) -> str:
    """Of what came from packages: the same wherever the same files were installed."""
    return digest({path: found for path, found in files.items() if _from_package(path)})


def run_tool(argv: Sequence[str], who: str, *, cwd: Path | None = None, stdin: str | None = None) -> str:
    """Standard output of an installer. Raises UsageError with its last words where it fails."""
    env = {name: value for name, value in environment_with_owner().items() if name not in _HARNESS_VARIABLES}
    try:
        done = subprocess.run(
            argv, cwd=cwd, env=env, input=stdin, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except OSError as error:
        raise UsageError(f"{who}: {argv[0]} cannot be run: {error}") from error
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{who}: {Path(argv[0]).name} did not finish within {TIMEOUT_S:g} s") from error
    if done.returncode != 0:
        raise UsageError(f"{who}: {last_words(done.stderr or done.stdout)}")
    return done.stdout


def last_words(text: str, lines: int = 6) -> str:
    """The last lines of what an installer printed, as one line without its decoration."""
    kept = [line.strip(" \t×╰─▶│├").removeprefix("npm error").strip() for line in text.splitlines()]
    kept = [line for line in kept if line and not line.startswith(_NOISE)]
    return " ".join(" ".join(kept[-lines:]).split())[-600:] or "it failed and said nothing"


def _files(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        yield from (Path(root, name) for name in names)
        yield from (Path(root, name) for name in folders if Path(root, name).is_symlink())


def _from_package(path: str) -> bool:
    """Without what the installer wrote itself: scripts that name its folder, its own records, byte code."""
    parts = path.split("/")
    if parts[0] == "node_modules":
        return parts[1] not in (".bin", ".package-lock.json")
    own = parts[-2].endswith(".dist-info") and parts[-1] in _INSTALLER_RECORDS if parts[1:] else False
    return "site-packages" in parts and "__pycache__" not in parts and not own
