"""The files of a source of the user's own: the program, what it imports of its own folder, and what the user adds.

Only these are seen by the server, so tasks and gold beside the program stay out of its sandbox. The source is parsed,
never imported. Its size is bounded, so that no folder takes long to read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.paths import find_page

MAX_FILES = 5_000
MAX_BYTES = 100_000_000
MAX_DEPTH = 50
_CACHES = ("__pycache__", ".mypy_cache", ".pytest_cache", ".ruff_cache", ".tox")
SKIPPED_FOLDERS = frozenset([*_CACHES, "node_modules", ".git", ".hg", ".venv", "venv"])
"""Folders of caches and installed packages."""


class SourceFiles:
    """Files that were read below one folder, within the bounds. Every method raises ConfigError."""

    def __init__(self, who: str, root: Path, lock_folder: Path) -> None:
        """`lock_folder`: folder with the lock and with environments' gold; no folder that holds it is read."""
        self.contents: dict[str, bytes] = {}
        """Bytes by path below the root."""
        self._who = who
        self._root = to_plain_path(root)
        self._real_root = Path(os.path.realpath(root))
        self._lock_folder = Path(os.path.realpath(lock_folder))
        self._entries = 0
        self._bytes = 0

    def add_file(self, path: Path) -> str:
        """Read a file, if it was not read yet; return its path below the root."""
        name = self._name_of(path)
        if name in self.contents:
            return name
        if not name.isprintable():
            raise ConfigError(f"{self._who}: {name!a} has characters in its name that a lock cannot hold; rename it")
        if not Path(os.path.realpath(path)).is_relative_to(self._real_root):
            raise ConfigError(f"{self._who}: '{name}' is a link out of the folder '{self._root}'; put the file there")
        self._count()
        try:
            with open(path, "rb", opener=_open_plain) as file:
                content = file.read(MAX_BYTES - self._bytes + 1)
        except OSError as error:
            raise ConfigError(f"{self._who}: '{name}' cannot be read: {error.strerror or error}") from error
        self._bytes += len(content)
        if self._bytes > MAX_BYTES:
            raise self._too_much(f"has more than {MAX_BYTES // 1_000_000} MB")
        self.contents[name] = content
        return name

    def add_folder(self, path: Path) -> list[str]:
        """Read all files of a folder, except caches and installed packages; return their paths below the root."""
        self._name_of(path)
        real = Path(os.path.realpath(path))
        if not real.is_relative_to(self._real_root):
            raise ConfigError(f"{self._who}: '{path.name}' is a link out of the folder '{self._root}'; put it there")
        if self._lock_folder.is_relative_to(real):
            raise ConfigError(
                f"{self._who}: folder '{path}' would be mounted with the lock and the environments beside it, gold and "
                "all; keep them in another folder (--dir, of gymcp servers: --lock)"
            )
        return [self.add_file(file) for file in self._walk(path)]

    def _walk(self, folder: Path, depth: int = 0) -> Iterator[Path]:
        if depth > MAX_DEPTH:
            raise self._too_much(f"has folders more than {MAX_DEPTH} deep")
        try:
            entries = sorted(self._scan(folder), key=lambda entry: entry.name)
        except OSError as error:
            raise ConfigError(f"{self._who}: folder '{folder}' cannot be read: {error.strerror or error}") from error
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in SKIPPED_FOLDERS:
                    yield from self._walk(Path(entry.path), depth + 1)
            elif entry.is_dir():
                raise ConfigError(f"{self._who}: '{entry.path}' is a link to a folder; put the folder itself there")
            elif not entry.name.endswith(".pyc"):
                yield Path(entry.path)

    def _scan(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        with os.scandir(folder) as entries:
            for entry in entries:
                self._count()
                yield entry

    def _count(self) -> None:
        self._entries += 1
        if self._entries > 2 * MAX_FILES:  # a folder's file counts twice: when it is listed and when it is read
            raise self._too_much(f"has more than {MAX_FILES:,} files")

    def _too_much(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._who}: the source in '{self._root}' {what}: too much to hash before each run; keep data out of the "
            f"program's packages, or mount it ({find_page('adding-a-server.md')})"
        )

    def _name_of(self, path: Path) -> str:
        absolute = to_plain_path(path)
        if not absolute.is_relative_to(self._root):
            raise ConfigError(f"{self._who}: '{path}' is outside of the source's folder '{self._root}'")
        return str(absolute.relative_to(self._root))


def to_plain_path(path: Path) -> Path:
    """The absolute path without ``..``; its links are not followed, so a link keeps its name."""
    return Path(os.path.normpath(path.absolute()))


def _open_plain(path: str, flags: int) -> int:
    """Descriptor of a plain file. Raises OSError for a pipe, a device or a folder, without waiting for it."""
    descriptor = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(0, "is not a plain file")
    return descriptor
