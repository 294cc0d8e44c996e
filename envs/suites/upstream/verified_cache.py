"""What a suite keeps in gymcp's cache: made once, and compared by each process with what was made."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from gymcp.atomic import make_once, write_atomically
from gymcp.errors import IntegrityError
from gymcp.mcp_servers.packages.install_folder import check_files, hold_folder, release_folder, write_manifest

_checked: set[tuple[Path, int]] = set()


def kept_folder(suite: str, folder: Path, make: Callable[[Path], None]) -> Path:
    """`folder`, filled by `make` where it is not there yet, and since then unchanged: hashed once per process.

    Held while this process lives. Raises InstallDrift, naming the first file that is not as it was made.
    """

    def fill(made: Path) -> None:
        make(made)
        write_manifest(made)

    make_once(folder, fill)
    hold_folder(folder)
    seen = (folder, folder.stat().st_ino)
    if seen not in _checked:
        try:
            check_files(folder, f"suite '{suite}'", f"gymcp suites install {suite}")
        except IntegrityError:
            release_folder(folder)  # it is not used, and may be made anew
            raise
        _checked.add(seen)
    return folder


def keep(path: Path, content: bytes) -> None:
    """Writes what `kept` gives back."""
    write_atomically(path, hashlib.sha256(content).hexdigest().encode() + b"\n" + content)


def kept(suite: str, path: Path) -> bytes:
    """What was computed for a suite, as it was written. Raises IntegrityError where it is not."""
    found, _, content = path.read_bytes().partition(b"\n")
    if found != hashlib.sha256(content).hexdigest().encode():
        raise IntegrityError(f"suite '{suite}': {path} has changed; remove it, then run: gymcp suites install {suite}")
    return content
