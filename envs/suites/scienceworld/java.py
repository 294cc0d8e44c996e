"""The machine's Java runtime, as mounts for a sandbox: its launcher, its modules and its libraries, read-only."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from gymcp.errors import UsageError
from gymcp.mcp_servers.sandbox import Mount

INSIDE = PurePosixPath("/srv/java")
LAUNCHER = INSIDE / "bin" / "java"
OLDEST_JAVA = 17
"""Oldest major version that the suite was tried on."""
INSTALL = "apt-get install default-jre-headless (Debian, Ubuntu), dnf install java-latest-openjdk-headless (Fedora)"

_FILES = (
    *("bin/java", "lib/jvm.cfg", "lib/modules", "lib/server", "lib/tzdb.dat"),
    *("conf/net.properties", "conf/security/java.security"),
)
"""Files that a plain program needs, beside the libraries. Debian keeps some of them in /etc, behind links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaRuntime:
    home: Path
    version: int
    """Major version."""

    def mounts(self) -> tuple[Mount, ...]:
        return tuple(Mount(source=source, target=INSIDE / name) for name, source in self._files())

    def _files(self) -> Iterator[tuple[str, Path]]:
        libraries = sorted(f"lib/{path.name}" for path in (self.home / "lib").glob("lib*.so"))
        for name in (*_FILES, *libraries):
            if (self.home / name).exists():
                yield name, (self.home / name).resolve()


def find_java(program: str = "java") -> JavaRuntime:
    """The runtime whose launcher is in PATH. Raises UsageError, with what to install, if there is none, or too old."""
    path = shutil.which(program)
    if path is None:
        raise UsageError(f"java: the simulator needs a Java runtime, and there is none in PATH; install it: {INSTALL}")
    home = Path(path).resolve().parent.parent
    if not (home / "lib" / "modules").is_file():
        raise UsageError(
            f"java: {path} is not in the folder of a Java runtime of version {OLDEST_JAVA} or newer; put the bin"
            f" folder of one first in PATH, or install it: {INSTALL}"
        )
    version = _read_version(home)
    if version < OLDEST_JAVA:
        raise UsageError(
            f"java: {path} is version {version}, too old: it takes {OLDEST_JAVA} or newer; install it: {INSTALL}"
        )
    return JavaRuntime(home=home, version=version)


def _read_version(home: Path) -> int:
    """Major version by the file ``release``; 0 if it does not say."""
    release = home / "release"
    text = release.read_text(encoding="utf-8", errors="replace") if release.is_file() else ""
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else 0
