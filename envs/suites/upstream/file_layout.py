"""Layout of a third-party suite's files in gymcp's cache, and a fingerprint of what its tasks depend on."""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.mcp_servers.sandbox import Mount


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteFiles:
    root: Path
    fingerprint: str
    """Hash of everything that decides what a task's record holds."""
    libraries: Path | None = None
    """The site-packages of the virtualenv that upstream's code needs, or None if it needs no package."""

    @property
    def server(self) -> Path:
        """The folder that may be mounted in a server's sandbox."""
        return self.root / "server"

    @property
    def private(self) -> Path:
        """The folder that must never be readable from inside a server's sandbox."""
        return self.root / "private"

    @property
    def tasks(self) -> Path:
        """The file with the tasks, as this code makes them; another version of the code uses another file."""
        return self.root.with_name(f"{self.root.name}-tasks-{self.fingerprint}.json")

    def mounts(self, code: Path, code_at: PurePosixPath, libraries_at: PurePosixPath) -> list[Mount]:
        """Mounts of `code`, which is `server` or `private`, and of the libraries, if any, at these places inside."""
        libraries = [] if self.libraries is None else [Mount(source=self.libraries, target=libraries_at)]
        return [Mount(source=code, target=code_at), *libraries]

    @property
    def are_complete(self) -> bool:
        """True if nothing is left to fetch or to compute."""
        folders = [self.root] if self.libraries is None else [self.root, self.libraries]
        return self.tasks.is_file() and all(folder.is_dir() for folder in folders)


def fingerprint(content: bytes, *modules: str) -> str:
    """Hash of `content` and of the source of `modules`, which are not imported."""
    sha256 = hashlib.sha256(content)
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.origin is not None:
            sha256.update(Path(spec.origin).read_bytes())
    return sha256.hexdigest()[:16]
