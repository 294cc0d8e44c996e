"""The files of a run on its driver: listed within bounds, and hashed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gymcp
from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.own_source.files import SKIPPED_FOLDERS, to_plain_path
from gymcp.paths import gymcp_home
from gymcp.scale.copies.records import CopiedEntry, FileSet
from gymcp.user_code import list_own_modules

MAX_ITEM_BYTES, MAX_ITEM_FILES = 2 << 30, 20_000
"""Size of the largest file or folder that is copied; a larger one must be on a node already."""
MAX_CODE_BYTES, MAX_CODE_FILES = 64 << 20, 2_000
"""Size of the largest folder that is copied whole because a Python file of the run lies in it."""
RUN_STORE = "trajectories.sqlite"
"""File of a run folder, none of which is copied with the code beside it."""
_SYSTEM = ("/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/usr/bin", "/usr/sbin", "/usr/lib",
    "/usr/lib64", "/usr/libexec", "/usr/share", "/usr/local/bin", "/usr/local/lib")  # fmt: skip
"""Folders of programs that a node has itself."""
_VENV_FILE = "pyvenv.cfg"
_ENTRY_PARTS = {"servers": 2, "pythons": 2, "models": 2, "suites": 3}
"""Folder of the cache -> number of path components of an entry in it, which is named after its content."""


class _TooLarge(Exception):
    """An item is over a bound."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listed:
    """A file, link or folder that was found, before it is hashed."""

    path: str
    source: Path
    """Path at which it is read."""
    status: os.stat_result
    target: str = ""


@dataclass(slots=True, kw_only=True)
class _Bound:
    """Files and bytes that may still be listed."""

    files: int
    bytes: int

    def take(self, status: os.stat_result) -> None:
        """Raises _TooLarge."""
        self.files -= 1
        self.bytes -= status.st_size if stat.S_ISREG(status.st_mode) else 0
        if self.files < 0 or self.bytes < 0:
            raise _TooLarge


class FileCollector:
    """Collects the files of a run. Every method raises ConfigError for a file that cannot be read."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        """Sentences for people about what is not copied."""
        self.contents: dict[str, bytes] = {}
        """Contents of files beside code, by key, as they were hashed: the user may write to such a file meanwhile."""
        self._entries: dict[str, CopiedEntry] = {}
        self._named: set[str] = set()
        self._large: set[Path] = set()
        self._modules: set[Path] = set()

    def add(self, path: Path) -> None:
        """A file or folder, whole. One that is not there, or that a node has itself, is left out.

        One that is too large must be on the node.
        """
        plain, real = to_plain_path(path), path.resolve()
        if not real.exists() or is_provided(real) or real in (Path("/"), Path.home()):  # the latter are refused later
            return
        self._named.add(str(plain))
        try:
            self._keep(_walk(real, str(real), real, _Bound(files=MAX_ITEM_FILES, bytes=MAX_ITEM_BYTES)))
        except _TooLarge:
            self._large.add(plain)
            return
        if plain != real:
            target = os.path.relpath(real, plain.parent)
            self._entries.setdefault(str(plain), CopiedEntry(path=str(plain), mode=0, target=target))

    def add_code(self, file: Path) -> None:
        """A Python file with its folder, but for caches and run folders; of a folder that is too large, the file."""
        self.add(file)
        folder = file.resolve().parent
        if is_provided(folder):
            return
        try:
            bound = _Bound(files=MAX_CODE_FILES, bytes=MAX_CODE_BYTES)
            self._keep(_walk(folder, str(folder), folder, bound, code=True), self.contents)
        except _TooLarge:
            self.notes.append(
                f"folder {folder} has more than {MAX_CODE_BYTES >> 20} MB or {MAX_CODE_FILES:,} files: of it, only"
                f" {file.name} and the modules that it imports are copied to nodes"
            )

    def add_modules(self) -> None:
        """The modules of the user that this process has imported, as files or whole packages."""
        for module in list_own_modules():
            if is_provided(module):
                continue
            try:
                bound = _Bound(files=MAX_ITEM_FILES, bytes=MAX_ITEM_BYTES)
                self._keep(_walk(module, str(module), module, bound, code=True))
                self._modules.add(module)
            except _TooLarge:
                self.notes.append(f"package {module} is too large to be copied: nodes import what they have of it")

    def finish(self) -> FileSet:
        """All that was added. The working folder is that of this process."""
        # files behind a link have entries of their own, and those in a large item are on the node
        above = {path for path, entry in self._entries.items() if entry.target} | set(map(str, self._large))
        entries = [
            self._entries[path] for path in sorted(self._entries) if above.isdisjoint(map(str, Path(path).parents))
        ]
        search = [str(Path(folder).resolve()) for folder in sys.path]
        return FileSet(
            entries=tuple(entry for entry in entries if Path(entry.path) not in self._large),
            named=tuple(sorted(self._named)),
            large=tuple(sorted(str(path) for path in self._large if self._large.isdisjoint(path.parents))),
            folder=str(Path.cwd()),
            search_path=tuple(
                folder for folder in dict.fromkeys(search) if any(each.is_relative_to(folder) for each in self._modules)
            ),
        )

    def _keep(self, listed: Iterable[_Listed], contents: dict[str, bytes] | None = None) -> None:
        for each in list(listed):  # all of it first: nothing of an item that is too large is hashed
            if each.path not in self._entries:
                self._entries[each.path] = _hash(each, contents)


def is_provided(path: Path) -> bool:
    """True for files that a node has itself: of the system, Python, virtualenvs, gymcp and its cache."""
    package = Path(gymcp.__file__).parent
    own = (package, *(each.resolve() for each in package.iterdir() if each.is_symlink()))
    python = [sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib", "scripts")]
    roots = [*map(Path, (*_SYSTEM, *python)), gymcp_home(), *own]
    in_venv = any((folder / _VENV_FILE).is_file() for folder in path.parents)
    return in_venv or any(path.is_relative_to(root) for root in roots)


def list_cache_entries(paths: Iterable[Path]) -> tuple[str, ...]:
    """Entries of the cache, below its folder, in which the paths lie: installed servers, suites and models."""
    home, found = gymcp_home(), set[str]()
    for path in paths:
        parts = path.relative_to(home).parts if path.is_relative_to(home) else ("",)
        if (count := _ENTRY_PARTS.get(parts[0])) is None or len(parts) < count:
            continue
        entry = Path(*parts[:count])
        beside = (home / entry.parent).glob(f"{entry.name}-*.json")  # the tasks that were made of a suite's folder
        found |= {str(entry), *(str(each.relative_to(home)) for each in beside)}
    return tuple(sorted(found))


def collect_cache_entry(entry: str) -> FileSet | None:
    """The files of an entry of the cache; None if it is too large to be copied."""
    top = gymcp_home() / entry
    try:
        bound = _Bound(files=MAX_ITEM_FILES, bytes=MAX_ITEM_BYTES)
        listed = list(_walk(top, "", top, bound, keeps_links=True))
    except _TooLarge:
        return None
    return FileSet(entries=tuple(map(_hash, listed)), cache_entry=entry)


def _walk(
    source: Path, path: str, top: Path, bound: _Bound, *, code: bool = False, keeps_links: bool = False
) -> Iterator[_Listed]:
    """Everything at `source`, under the name `path`; folders first. A link out of `top` is followed.

    `code`: leave out hidden files, caches, run folders, and all that cannot be read. `keeps_links`: keep each link as
    it is. Raises _TooLarge.
    """
    if code and (not os.access(source, os.R_OK) or _is_output(source)):
        return
    try:
        status = source.lstat()
        if stat.S_ISLNK(status.st_mode):
            if (target := _find_target(source, top, keeps_links=keeps_links)) is not None:
                bound.take(status)
                yield _Listed(path=path, source=source, status=status, target=target)
                return
            source = source.resolve()
            status = source.stat()
        if stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            bound.take(status)
            yield _Listed(path=path, source=source, status=status)
        if stat.S_ISDIR(status.st_mode):
            names = sorted(each.name for each in source.iterdir())
            for name in names if not code else _select_code(names):
                yield from _walk(source / name, f"{path}/{name}", top, bound, code=code, keeps_links=keeps_links)
    except OSError as error:
        raise ConfigError(f"{source}: cannot be read, to be copied to nodes: {error.strerror or error}") from error


def _select_code(names: list[str]) -> list[str]:
    """Names of what is copied with the code in the folder; none of a run folder or a virtualenv."""
    if RUN_STORE in names or _VENV_FILE in names:
        return []
    return [name for name in names if not (name.startswith(".") or name.endswith(".pyc") or name in SKIPPED_FOLDERS)]


def _is_output(path: Path) -> bool:
    """True for the file that the output of this command goes to."""
    with contextlib.suppress(OSError):  # the output may be closed
        return any(os.path.samestat(path.stat(), os.fstat(descriptor)) for descriptor in (1, 2))
    return False


def _find_target(link: Path, top: Path, *, keeps_links: bool) -> str | None:
    """Text of the link in a copy; None if what it leads to is copied in its place."""
    text, real = str(link.readlink()), link.resolve()
    if keeps_links or not real.exists():
        return text
    if not real.is_relative_to(top):
        return None
    return text if not text.startswith("/") else os.path.relpath(real, link.parent)


def _hash(listed: _Listed, contents: dict[str, bytes] | None = None) -> CopiedEntry:
    """The entry of a copy; the content of a file is added to `contents`."""
    mode = stat.S_IMODE(listed.status.st_mode) & 0o777
    if listed.target:
        return CopiedEntry(path=listed.path, mode=0, target=listed.target)
    if stat.S_ISDIR(listed.status.st_mode):
        return CopiedEntry(path=listed.path, mode=mode)
    try:
        with listed.source.open("rb") as file:
            if contents is None:
                digest, size = hashlib.file_digest(file, "sha256").hexdigest(), file.tell()
                return CopiedEntry(path=listed.path, mode=mode, sha256=digest, bytes=size)
            content = file.read()
    except OSError as error:
        raise ConfigError(f"{listed.source}: cannot be read, to be copied to nodes: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    entry = CopiedEntry(path=listed.path, mode=mode, sha256=digest, bytes=len(content))
    contents[entry.key] = content
    return entry
