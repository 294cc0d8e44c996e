"""Files that a run needs, as they are on its driver, and their place on a node."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from gymcp.agents.programs.settings import PREFIX, is_program

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiedEntry:
    """A file, a link or a folder, with all that a copy of it has: no owner, and no times."""

    path: str
    """Absolute path on the driver; of an entry of the cache its path below that entry, from a slash."""
    mode: int
    """Permission bits; 0 for a link."""
    sha256: str = ""
    """Digest of a file's content; empty for a link or a folder."""
    bytes: int = 0
    target: str = ""
    """Text of a link; empty for a file or a folder."""

    @property
    def key(self) -> str:
        """Name of the file's content and mode; empty for a link or a folder."""
        return f"{self.sha256}-{self.mode:o}" if self.sha256 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """Files that are copied to a node together."""

    entries: tuple[CopiedEntry, ...] = ()
    """Folders come before what is in them."""
    named: tuple[str, ...] = ()
    """Absolute paths among them that options of the run may name."""
    large: tuple[str, ...] = ()
    """Files and folders that are too large to be copied: a node must have them itself, at the same path."""
    folder: str = ""
    """Working folder of the driver."""
    search_path: tuple[str, ...] = ()
    """Folders from which the driver imports modules of the user."""
    cache_entry: str = ""
    """Place of the files below the cache folder; empty for files at any path."""

    @property
    def digest(self) -> str:
        """SHA-256 of everything that a copy depends on."""
        content = (self.entries, self.large, self.folder, self.cache_entry)
        return hashlib.sha256(repr(content).encode()).hexdigest()

    @property
    def keys(self) -> Mapping[str, CopiedEntry]:
        """Content and mode of each file -> one file with them."""
        return {entry.key: entry for entry in self.entries if entry.sha256}


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedFiles:
    """The driver's files on a node."""

    folder: str
    """Working folder of the driver."""
    root: str = ""
    """Folder below which they lie at the driver's paths; empty if they are at these paths themselves."""
    named: tuple[str, ...] = ()
    search_path: tuple[str, ...] = ()

    def enter(self) -> None:
        """Work in the driver's folder, or its copy, if it is there; import from the folders that the driver does."""
        folder = Path(self.root + self.folder)
        if folder.is_dir():
            os.chdir(folder)
        sys.path[:0] = [self.root + path for path in self.search_path]

    def locate(self, options: T) -> T:
        """The record, with the paths of the driver that its texts name as they are on this node."""
        if not self.root or not self.named:
            return options
        longest_first = sorted(self.named, key=len, reverse=True)
        pattern = re.compile(rf"(?<![\w/.-])(?:{'|'.join(map(re.escape, longest_first))})(?![^\s/:,])")

        def change(text: str) -> str:
            if is_program(text):  # its words are quoted as the shell's are
                return PREFIX + shlex.join(map(change, shlex.split(text.removeprefix(PREFIX))))
            return pattern.sub(lambda found: self.root + found[0], text)

        located: T = _change_texts(options, change)
        return located

    def restore(self, config: T) -> T:
        """The record, with paths of this node as they are on the driver."""
        if not self.root:
            return config
        restored: T = _change_texts(config, lambda text: text.replace(self.root, ""))
        return restored


def _change_texts(value: Any, change: Callable[[str], str]) -> Any:
    """The value with all its texts changed, also in records and containers."""
    if type(value) is str:
        return change(value)
    if isinstance(value, Path):
        return Path(change(str(value)))
    if is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in fields(value) if field.init]
        return replace(value, **{name: _change_texts(getattr(value, name), change) for name in names})
    if isinstance(value, Mapping):
        return {name: _change_texts(each, change) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_change_texts(each, change) for each in value)
    return value
