"""Folders and files of a suite in gymcp's cache: made once, and checked by each process against their hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from gymcp.atomic import make_once, write_atomically
from gymcp.errors import IntegrityError
from gymcp.mcp_servers.packages.install_folder import check_files, hold_folder, release_folder, write_manifest

_checked: set[tuple[Path, int]] = set()


def verified_folder(suite: str, folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, which `make` fills if it is missing, and which is unchanged since then: hashed once per process.

    It is held while this process lives. Raises InstallDrift, naming the first file that is not as it was made.
    """

    def fill(new_folder: Path) -> None:
        make(new_folder)
        write_manifest(new_folder)

    make_once(folder, fill)
    hold_folder(folder)
    identity = (folder, folder.stat().st_ino)
    if identity not in _checked:
        try:
            check_files(folder, f"suite '{suite}'", f"gymcp suites install {suite}")
        except IntegrityError:
            release_folder(folder)  # it is not used, and may be made again
            raise
        _checked.add(identity)
    return folder


def write_checked(path: Path, content: bytes) -> None:
    """Write the content with its hash, for `read_checked`."""
    write_atomically(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def read_checked(suite: str, path: Path) -> bytes:
    """The content that `write_checked` wrote for a suite. Raises IntegrityError if it is not what was written."""
    digest, _, content = path.read_bytes().partition(b"\n")
    if digest != hashlib.sha256(content).hexdigest().encode():
        raise IntegrityError(f"suite '{suite}': {path} has changed; remove it, then run: gymcp suites install {suite}")
    return content
