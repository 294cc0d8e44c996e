"""Folders of installed servers: made once, with a manifest that lists every file and its hash."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath

from uv import find_uv_bin

from gymcp.errors import IntegrityError, UsageError
from gymcp.mcp_servers.digest import digest
from gymcp.paths import gymcp_home
from gymcp.process_owner import environment_with_owner, lock_folder

INSIDE = PurePosixPath("/srv/server")
"""Path of an installed folder inside the sandbox."""
MANIFEST = "installed.json"
TIMEOUT_S = 900.0
_NOISE = ("npm warn", "npm notice", "warning:", "A complete log of this run")
_INSTALLER_RECORDS = ("RECORD", "INSTALLER", "REQUESTED", "uv_cache.json")
_HARNESS_VARIABLES = ("VIRTUAL_ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "UV_PROJECT_ENVIRONMENT")


class InstallDrift(IntegrityError):
    """The files in a folder are not those that were installed there. Installing again repairs it."""

    def __init__(self, message: str, folder: Path) -> None:
        super().__init__(message)
        self.folder = folder


_held: dict[tuple[Path, int], int] = {}


def hold_folder(folder: Path) -> None:
    """Keep the folder from being removed while this process lives, or until `release_folder`.

    Raises FileNotFoundError.
    """
    key = (folder, os.getpid())
    if key in _held:
        return
    with contextlib.ExitStack() as stack:
        handle = lock_folder(folder)
        stack.callback(os.close, handle)
        if not os.path.samestat(os.fstat(handle), folder.stat()):
            raise FileNotFoundError(f"{folder} was removed, and made again, while it was being locked")
        _held[key] = handle
        stack.pop_all()


def release_folder(folder: Path) -> None:
    """Allow the folder to be removed again. Does nothing if it is not held."""
    handle = _held.pop((folder, os.getpid()), None)
    if handle is not None:
        os.close(handle)


def servers_folder() -> Path:
    """Folder of all installed servers."""
    return gymcp_home() / "servers"


def machine() -> str:
    """Name of the system and processor that compiled files depend on."""
    return f"{platform.system().lower()}-{platform.machine()}"


def write_manifest(folder: Path) -> None:
    """Write the manifest of the files that are in the folder now."""
    (folder / MANIFEST).write_text(json.dumps(dict(sorted(hash_files(folder).items())), indent=0), encoding="utf-8")


def check_files(folder: Path, who: str, repair: str) -> Mapping[str, str]:
    """Hashes by relative path, equal to the manifest. Raises InstallDrift, naming the first file that differs.

    `repair`: the command that installs the folder again.
    """

    def drift(what: str) -> InstallDrift:
        return InstallDrift(f"{who}: {what}; run: {repair}, or remove {folder}", folder)

    try:
        listed = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise drift(f"{MANIFEST} cannot be read: {error}") from error
    hashes = hash_files(folder)
    for path in sorted(listed.keys() | hashes.keys()):
        if path not in hashes:
            raise drift(f"installed file '{path}' is gone")
        if path not in listed:
            raise drift(f"file '{path}' was not installed")
        if hashes[path] != listed[path]:
            raise drift(f"installed file '{path}' has changed")
    return hashes


def hash_files(folder: Path) -> dict[str, str]:
    """sha256 by relative path; for a link its target. The manifest itself is left out."""
    start, hashes = len(f"{folder}/"), {}
    for entry in _files(str(folder)):
        name = entry.path[start:]
        if entry.is_symlink():
            hashes[name] = f"link {Path(entry.path).readlink()}"
        elif name != MANIFEST:
            with open(entry.path, "rb", buffering=0) as file:  # noqa: PTH123 (a Path for each takes as long as its hash)
                hashes[name] = hashlib.sha256(file.read()).hexdigest()
    return hashes


def tree_digest(files: Mapping[str, str]) -> str:
    """Digest of the files that came from packages. Equal files have equal digests on every machine."""
    return digest({path: sha256 for path, sha256 in files.items() if _from_package(path)})


def run_tool(argv: Sequence[str], who: str, *, cwd: Path | None = None, stdin: str | None = None) -> str:
    """Standard output of an installer. Raises UsageError with the end of its output if it fails."""
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


def find_uv(who: str) -> str:
    """Path of uv's program. Raises UsageError if it is not there."""
    try:
        return find_uv_bin()
    except FileNotFoundError as error:
        raise UsageError(f"{who}: uv is not there: {error}; install it: {sys.executable} -m pip install uv") from error


def last_words(text: str, lines: int = 6) -> str:
    """Last lines of an installer's output, as one line without decoration."""
    plain = [line.strip(" \t×╰─▶│├").removeprefix("npm error").strip() for line in text.splitlines()]
    plain = [line for line in plain if line and not line.startswith(_NOISE)]
    return " ".join(" ".join(plain[-lines:]).split())[-600:] or "it failed and said nothing"


def _files(folder: str) -> Iterator[os.DirEntry[str]]:
    """Files and links anywhere below the folder, but for folders that cannot be listed."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(entry.path)
            else:
                yield entry


def _from_package(path: str) -> bool:
    """False for files that the installer wrote itself: scripts that name its folder, its records, byte code."""
    parts = path.split("/")
    if parts[0] == "node_modules":
        return parts[1] not in (".bin", ".package-lock.json")
    own = parts[-2].endswith(".dist-info") and parts[-1] in _INSTALLER_RECORDS if parts[1:] else False
    return "site-packages" in parts and "__pycache__" not in parts and not own
