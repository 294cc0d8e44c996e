"""Copies of the driver's files on a node: compared by digest, received, and put in their place.

A file is kept once for each content and mode, in ``copied-files`` of the cache. A set of files is a folder of hard
links to them, in ``copies``, which is named after the set's digest. Every file is hashed before each run.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gymcp.errors import ConfigError, IntegrityError
from gymcp.paths import copies_folder, gymcp_home
from gymcp.process_owner import is_unlocked, lock_folder, staging_folder
from gymcp.scale.copies.records import CopiedEntry, FileSet, PlacedFiles
from gymcp.scratch import remove_tree

UNUSED_S = 14 * 86400.0
"""Seconds after the last run with them until copies are removed."""
_BLOCK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a file's content, on its way."""

    key: str
    """See `CopiedEntry.key`."""
    path: str
    """Path of the file on the driver, for messages."""
    offset: int
    content: bytes
    is_last: bool


def find_placed(files: FileSet) -> PlacedFiles | None:
    """The files if this node has them all: at the driver's paths, or copied for an earlier run; else None.

    Raises ConfigError if an item that is too large to be copied is missing.
    """
    for path in files.large:
        if not Path(path).exists():
            raise ConfigError(
                f"{path}: is too large to be copied, and is not there; put it at the same path on this node"
            )
    if files.cache_entry:
        # one that was made for another machine is left out: this one installs its own
        has_it = (gymcp_home() / files.cache_entry).exists() or not _lead_somewhere(files)
        return _describe(files, "") if has_it else None
    if all(_is_same(entry, entry.path) for entry in files.entries):
        return _describe(files, "")
    root = copies_folder() / files.digest
    with _name_writing(str(root)):
        if not root.is_dir():
            return None
        if not all(_is_same(entry, f"{root}{entry.path}") for entry in files.entries):
            if not is_unlocked(root):
                raise ConfigError(
                    f"{root}: another run works with these copies, and has changed them; wait for its end"
                )
            remove_tree(root)
            return None
        return _use(files, root)


def find_missing(files: FileSet) -> tuple[str, ...]:
    """Keys of the contents that must be sent to this node. Those that lie at the driver's paths are taken from there.

    Raises ConfigError if they cannot be written.
    """
    missing = []
    for key, entry in files.keys.items():
        kept = _files_folder() / key
        with _name_writing(entry.path):
            if _is_same(entry, str(kept)):
                os.utime(kept)
            elif not files.cache_entry and _is_same(entry, entry.path):
                _take(entry, _copy_blocks(Path(entry.path)))
            else:
                missing.append(key)
    return tuple(missing)


def receive(wanted: Sequence[str], pieces: Sequence[Piece]) -> None:
    """Write the pieces of the wanted files, in order; a file that is whole is hashed as it is on the disk, and kept.

    Raises ConfigError if it cannot be written, IntegrityError if it has another digest than on the driver.
    """
    for piece in pieces:
        if piece.key not in wanted:
            continue
        part = _parts.get(piece.key) if piece.offset else None
        if part is None:
            part = _parts[piece.key] = _files_folder() / f".{piece.key}.{secrets.token_hex(8)}.tmp"
        with _name_writing(piece.path), _remove_on_error(part):
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("ab") as file:
                file.write(piece.content)
            if piece.is_last:
                _keep(piece.path, piece.key, part)
                del _parts[piece.key]


_parts: dict[str, Path] = {}
"""Files that have not arrived whole, by key."""


def place(files: FileSet) -> PlacedFiles:
    """Put the files, all of which have arrived, in their place, whole or not at all. Raises ConfigError."""
    root = gymcp_home() / files.cache_entry if files.cache_entry else copies_folder() / files.digest
    with _name_writing(str(root)):
        with staging_folder(copies_folder() / files.digest) as staging:
            made = staging / "made"
            _fill(files, made)
            if files.cache_entry:
                os.sync()  # it is not hashed here again, unlike other copies, in which a power cut would be noticed
            root.parent.mkdir(parents=True, exist_ok=True)
            with contextlib.suppress(FileExistsError):  # another process was faster
                _rename_new(made, root)
        _remove_unused()
        return _describe(files, "") if files.cache_entry else _use(files, root)


def _describe(files: FileSet, root: str) -> PlacedFiles:
    return PlacedFiles(folder=files.folder, root=root, named=files.named, search_path=files.search_path)


def _use(files: FileSet, root: Path) -> PlacedFiles:
    """The copy, which stays while this process lives."""
    lock_folder(root)
    os.utime(root)
    return _describe(files, str(root.resolve()))


def _fill(files: FileSet, root: Path) -> None:
    for item in files.large:
        link = Path(f"{root}{item}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(item)
    if not files.cache_entry:
        Path(f"{root}{files.folder}").mkdir(parents=True, exist_ok=True)
    for entry in files.entries:
        path = Path(f"{root}{entry.path}")
        if not (entry.sha256 or entry.target):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if entry.target:
            path.symlink_to(entry.target)
        else:
            path.hardlink_to(_files_folder() / entry.key)
    for entry in reversed(files.entries):
        if not (entry.sha256 or entry.target):
            Path(f"{root}{entry.path}").chmod(entry.mode)


def _rename_new(made: Path, root: Path) -> None:
    """Raises FileExistsError if there is something already."""
    try:
        if root.exists():
            raise FileExistsError(root)
        made.rename(root)
    except OSError as error:
        if not root.exists():
            raise
        raise FileExistsError(root) from error


def _lead_somewhere(files: FileSet) -> bool:
    """True if every absolute link, such as that of a virtualenv to its interpreter, leads to something here."""
    return all(Path(entry.target).exists() for entry in files.entries if entry.target.startswith("/"))


def _is_same(entry: CopiedEntry, path: str) -> bool:
    """True if there is such a file, link or folder at the path; its mode may be another one."""
    try:
        if entry.target:  # a link, or a path through one
            there = os.path.normpath(Path(path).parent / entry.target)
            return os.path.lexists(path) and os.path.realpath(path) == os.path.realpath(there)
        if not entry.sha256:
            return Path(path).is_dir()
        if not Path(path).is_file() or Path(path).stat().st_size != entry.bytes:
            return False
        return _digest(Path(path)) == entry.sha256
    except OSError:
        return False


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _take(entry: CopiedEntry, blocks: Iterator[bytes]) -> None:
    """Keep a file of this node."""
    part = _files_folder() / f".{entry.key}.{secrets.token_hex(8)}.tmp"
    with _remove_on_error(part):
        part.parent.mkdir(parents=True, exist_ok=True)
        with part.open("wb") as file:
            file.writelines(blocks)
        _keep(entry.path, entry.key, part)


def _copy_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            yield block


def _keep(path: str, key: str, part: Path) -> None:
    """Give a whole file its name. Raises IntegrityError for another digest than that of its key."""
    sha256, _, mode = key.partition("-")
    if _digest(part) != sha256:
        raise IntegrityError(
            f"{path}: its copy has another digest than the file had: it has changed since; start again"
        )
    part.chmod(int(mode, 8))
    part.rename(part.with_name(key))


def _files_folder() -> Path:
    return gymcp_home() / "copied-files"


def _remove_unused() -> None:
    """Remove copies that no run has used for long, and files that are in none."""
    since = time.time() - UNUSED_S
    for path in (*copies_folder().glob("*"), *_files_folder().glob("*")):
        with contextlib.suppress(FileNotFoundError):  # another process was faster
            status = path.lstat()
            if status.st_mtime > since:
                continue
            if path.is_dir() and is_unlocked(path):
                remove_tree(path)
            elif not path.is_dir() and status.st_nlink == 1:
                path.unlink()


@contextlib.contextmanager
def _remove_on_error(part: Path) -> Iterator[None]:
    try:
        yield
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def _name_writing(path: str) -> Iterator[None]:
    """Turn an OSError into a ConfigError about the cache of this node."""
    try:
        yield
    except OSError as error:
        home = gymcp_home()
        free = ""
        with contextlib.suppress(OSError):
            free = f" ({shutil.disk_usage(home).free / 1e6:,.0f} MB are free)"
        raise ConfigError(
            f"{path}: cannot be copied into the cache {home}{free}: {error.strerror or error}; free space there, or"
            " set GYMCP_HOME in the environment of this node's ray start"
        ) from error
