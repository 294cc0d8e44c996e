"""Reads a world from its files: run in a wall of its own, with the workspace read-only.

It follows no link and waits on no file. Arguments: the folder, and a JSON object with ``kind``, ``path``, ``masks`` and
``limits``. Wire: one JSON object per line, ``{"op": "key"}`` -> ``{"key": hex}``, ``{"op": "state"}`` ->
``{"key": hex, "state": ...}``, or ``{"error": words}``.

A file is read again only where its inode, size or times have changed, so an unchanged world costs one walk. What a
memory map writes without the kernel changing a time is seen once the pages are written back.
"""

from __future__ import annotations

import binascii
import contextlib
import fnmatch
import json
import os
import stat
import sys
import time
import typing
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

if typing.TYPE_CHECKING:
    import sqlite3


Json = Any
Entries = dict[str, dict[str, Json]]

MAX_PATH_BYTES = 16_000_000
"""Of all paths together."""
INLINE_BYTES = 64_000
"""A larger file is recorded by its digest."""
INLINE_TOTAL_BYTES = 4_000_000
"""Of all contents in one recorded state, in the order of their paths; the rest is recorded by digest."""
ATTEMPTS = 5
RACY_NS = 20_000_000
"""A file changed this shortly before it was read may change again without its times telling."""
RACY_COARSE_NS = 2_100_000_000
"""The same where the file system keeps whole seconds only."""
BLOCK = 1 << 20
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "device",
    stat.S_IFBLK: "device",
}
SUFFIXES = ("", "-wal", "-journal")
PSEUDO_REFS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD")


class Refused(Exception):
    """The world cannot be digested; the message says why."""


class Changed(Exception):
    """Something was replaced while it was read."""


# -------------------------------------------------------------------------------------------------------------- files


class Tree:
    """Everything below a folder, by path."""

    def __init__(self, limits: dict[str, Json], masks: list[str]) -> None:
        self._limits = limits
        self._masks = masks
        self._known: dict[str, tuple[tuple[int, ...], str]] = {}
        self._deadline = 0.0

    def begin(self) -> None:
        self._deadline = time.monotonic() + self._limits["seconds"]

    def check_time(self) -> None:
        if time.monotonic() > self._deadline:
            raise Refused(f"too large: reading it takes more than {self._limits['seconds']:g} s")

    def read(self, root: int, contents: dict[str, bytes] | None = None, skip: frozenset[str] = frozenset()) -> Entries:
        """Entries by path; small files go into `contents`. `skip`: top-level names left out."""
        self._entries: Entries = {}
        self._left = {"entries": self._limits["entries"], "bytes": self._limits["bytes"], "paths": MAX_PATH_BYTES}
        self._still_known: dict[str, tuple[tuple[int, ...], str]] = {}
        self._read_folder(root, "", 0, contents, skip)
        self._known = self._still_known
        return self._entries

    def _read_folder(
        self, fd: int, prefix: str, depth: int, contents: dict[str, bytes] | None, skip: frozenset[str]
    ) -> None:
        if depth > self._limits["depth"]:
            raise Refused(f"too large: folders are nested more than {self._limits['depth']} deep")
        self.check_time()
        for name in self._names(fd, prefix, skip):
            path = prefix + name
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                kind = KINDS.get(stat.S_IFMT(found.st_mode), "device")
                entry: dict[str, Json] = {"type": kind, "mode": f"{stat.S_IMODE(found.st_mode):o}"}
                self._entries[path] = entry
                if kind == "folder":
                    child = os.open(name, FOLDER, dir_fd=fd)
                    try:
                        self._read_folder(child, path + "/", depth + 1, contents, frozenset())
                    finally:
                        os.close(child)
                elif kind == "file":
                    entry["sha256"] = self._file_digest(fd, name, path, found, contents)
                elif kind == "link":
                    entry["target"] = os.readlink(name, dir_fd=fd)
                elif kind == "device":
                    entry["device"] = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
            except PermissionError as error:
                raise Refused(f"{path!r} cannot be read: {error.strerror}") from None
            except OSError as error:  # gone, or a link by now
                raise Changed(f"{path!r}: {error.strerror}") from None

    def _names(self, fd: int, prefix: str, skip: frozenset[str]) -> list[str]:
        names = []
        with os.scandir(fd) as found:
            for entry in found:
                self._spend("entries", 1)
                self._spend("paths", len(prefix) + len(entry.name))
                path = prefix + entry.name
                if entry.name not in skip and not any(fnmatch.fnmatchcase(path, mask) for mask in self._masks):
                    names.append(entry.name)
        return sorted(names)

    def _spend(self, what: str, amount: int) -> None:
        self._left[what] -= amount
        if self._left[what] < 0:
            limit = MAX_PATH_BYTES if what == "paths" else self._limits[what]
            raise Refused(f"too large: more than {limit} {'bytes of paths' if what == 'paths' else what}")

    def _file_digest(
        self, folder: int, name: str, path: str, found: os.stat_result, contents: dict[str, bytes] | None
    ) -> str:
        self._spend("bytes", found.st_size)
        mark = _mark(found)
        wanted = contents is not None and found.st_size <= INLINE_BYTES
        known = self._known.get(path)
        if known is not None and known[0] == mark and not wanted:
            self._still_known[path] = known
            return known[1]
        begun = time.time_ns()
        fd = os.open(name, FILE, dir_fd=folder)
        try:
            digest, kept = self.hash_file(fd, mark, keep=wanted)
        finally:
            os.close(fd)
        if wanted and contents is not None:
            contents[path] = kept
        slack = RACY_COARSE_NS if found.st_ctime_ns % 1_000_000_000 == 0 else RACY_NS
        if found.st_ctime_ns + slack < begun:
            self._still_known[path] = (mark, digest)
        return digest

    def hash_file(self, fd: int, mark: tuple[int, ...], *, keep: bool = False, into: Any = None) -> tuple[str, bytes]:
        """(digest, content or b""). Raises Changed where the file is not, or no longer, the one with this mark."""
        if _mark(os.fstat(fd)) != mark:
            raise Changed("a file was replaced")
        hashed, kept, left = sha256(), b"", mark[2]
        while block := os.read(fd, BLOCK):
            left -= len(block)
            if left < 0:
                break
            hashed.update(block)
            if keep:
                kept += block
            if into is not None:
                into.write(block)
            self.check_time()
        if left != 0 or _mark(os.fstat(fd)) != mark:
            raise Changed("a file changed while it was read")
        return hashed.hexdigest(), kept


def _mark(found: os.stat_result) -> tuple[int, ...]:
    kind = stat.S_IFMT(found.st_mode)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, kind)


def show(entries: Entries, contents: dict[str, bytes]) -> Entries:
    """The entries as they are recorded: with the content of files in place of its digest where it is small."""
    left = INLINE_TOTAL_BYTES
    for path, content in contents.items():
        entry = entries[path]
        left -= len(content)
        if left < 0:
            entry["size"] = len(content)
            continue
        del entry["sha256"]
        try:
            entry["text"] = content.decode()
        except UnicodeDecodeError:
            entry["base64"] = encoded(content)
    return entries


@contextlib.contextmanager
def opened(root: int, path: str, flags: int) -> Iterator[int]:
    """The file or folder at a relative path, with no link anywhere on the way. Raises OSError."""
    parts = [part for part in path.split("/") if part not in ("", ".")]
    fd = os.dup(root)
    try:
        for number, part in enumerate(parts):
            if part == "..":
                raise Refused(f"{path!r}: leaves the workspace")
            below = os.open(part, flags if number == len(parts) - 1 else FOLDER, dir_fd=fd)
            os.close(fd)
            fd = below
        yield fd
    finally:
        os.close(fd)


# ------------------------------------------------------------------------------------------------------------- worlds


class Files:
    """All files."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self, root: int, path: str, with_state: bool) -> tuple[Json, Json]:
        """(what the key is made of, the state or None)."""
        contents: dict[str, bytes] | None = {} if with_state else None
        with opened(root, path, FOLDER) as folder:
            entries = self._tree.read(folder, contents)
        key = manifest(entries)
        return key, {"files": show(entries, contents)} if contents is not None else None


def manifest(entries: Entries) -> Json:
    """What the key of the entries is made of; taken before `show` changes them."""
    return sorted([path, sorted(entry.items())] for path, entry in entries.items())


class Git:
    """HEAD, refs, index entries and work tree; without git, which a repository's settings can make run programs."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self, root: int, path: str, with_state: bool) -> tuple[Json, Json]:
        contents: dict[str, bytes] | None = {} if with_state else None
        state: dict[str, Json] = {"head": None, "refs": {}, "index": []}
        with opened(root, path, FOLDER) as folder:
            entries = self._tree.read(folder, contents, skip=frozenset({".git"}))
            with contextlib.suppress(FileNotFoundError, NotADirectoryError), opened(folder, ".git", FOLDER) as git:
                head = self._content(git, "HEAD")
                refs = self._packed_refs(git) | self._loose_refs(git, "refs", 0)
                refs |= {name: found for name in PSEUDO_REFS if (found := self._content(git, name))}
                state = {"head": head, "refs": refs, "index": self._index(git)}
        key = [state, manifest(entries)]
        return key, {**state, "files": show(entries, contents)} if contents is not None else None

    def _bytes(self, folder: int, path: str) -> bytes | None:
        try:
            with opened(folder, path, FILE) as fd:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    return None
                if found.st_size > BLOCK * 32:
                    raise Refused(f"too large: {path!r} of the repository has {found.st_size} bytes")
                return self._tree.hash_file(fd, _mark(found), keep=True)[1]
        except OSError:
            return None

    def _content(self, folder: int, path: str) -> str | None:
        content = self._bytes(folder, path)
        return None if content is None else content.decode("utf-8", "surrogateescape").strip()

    def _packed_refs(self, git: int) -> dict[str, Json]:
        lines = (self._content(git, "packed-refs") or "").splitlines()
        pairs = [line.split(" ", 1) for line in lines if line and line[0] not in "#^"]
        return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}

    def _loose_refs(self, git: int, path: str, depth: int) -> dict[str, Json]:
        refs: dict[str, Json] = {}
        if depth > 20:
            raise Refused("too large: refs are nested more than 20 deep")
        self._tree.check_time()
        try:
            with opened(git, path, FOLDER) as folder:
                names = sorted(os.listdir(folder))  # noqa: PTH208
        except NotADirectoryError:
            content = self._content(git, path)
            return {} if content is None else {path: content}
        except OSError:
            return {}
        if len(names) > 50_000:
            raise Refused(f"too large: more than 50000 refs in {path!r}")
        for name in names:
            refs |= self._loose_refs(git, f"{path}/{name}", depth + 1)
        return refs

    def _index(self, git: int) -> Json:
        data = self._bytes(git, "index")
        if data is None:
            return []
        try:
            return list(index_entries(data))
        except (ValueError, IndexError):
            return {"unreadable": sha256(data).hexdigest()}


def index_entries(data: bytes) -> Iterator[list[Json]]:
    """[path, mode, object, stage] of each entry of an index file, version 2 to 4; times and inodes are left out."""
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4) or count > len(data) // 62:
        raise ValueError("not an index")
    at, path = 12, b""
    for _ in range(count):
        start, flags = at, int.from_bytes(data[at + 60 : at + 62], "big")
        mode, object_id = int.from_bytes(data[at + 24 : at + 28], "big"), data[at + 40 : at + 60].hex()
        at += 64 if version >= 3 and flags & 0x4000 else 62
        if version == 4:
            dropped = data[at] & 0x7F
            while data[at] & 0x80:
                at += 1
                dropped = ((dropped + 1) << 7) | (data[at] & 0x7F)
            at += 1
            end = data.index(b"\0", at)
            path = path[: len(path) - dropped] + data[at:end]
            at = end + 1
        else:
            end = data.index(b"\0", at)
            path = data[at:end]
            at = start + ((end - start) // 8 + 1) * 8
        yield [path.decode("utf-8", "surrogateescape"), f"{mode:o}", object_id, (flags >> 12) & 3]


class Sqlite:
    """Schema and sorted rows of a database, from a private copy; unreadable content is a state like any other."""

    def __init__(self, tree: Tree) -> None:
        import sqlite3  # noqa: PLC0415 - 5 ms of every start, for this kind of world alone

        self._sqlite3 = sqlite3
        self._tree = tree
        self._marks: Json = None
        self._found: tuple[Json, Json] = (None, None)

    def read(self, root: int, path: str, with_state: bool) -> tuple[Json, Json]:
        marks = [self._mark_of(root, path + suffix) for suffix in SUFFIXES]
        fresh = max((mark[4] for mark in marks if mark), default=0) + RACY_NS >= time.time_ns()
        if marks != self._marks or fresh:
            copy = f"{os.environ['TMPDIR']}/db"
            try:
                digests = [self._copy(root, path, suffix, copy) for suffix in SUFFIXES]
                self._found = self._dump(copy, digests)
            finally:
                for suffix in (*SUFFIXES, "-shm"):
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(copy + suffix)  # noqa: PTH108
            self._marks = marks
        return self._found[0], self._found[1] if with_state else None

    def _mark_of(self, root: int, path: str) -> Json:
        try:
            with opened(root, path, FILE) as fd:
                return _mark(os.fstat(fd))
        except OSError:
            return None

    def _copy(self, root: int, path: str, suffix: str, copy: str) -> str | None:
        """The digest of the file, copied to `copy` with the suffix; None where there is no regular file."""
        try:
            with opened(root, path + suffix, FILE) as fd:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    return None
                if found.st_size > self._tree._limits["bytes"] // 4:
                    raise Refused(f"too large: {path + suffix!r} has {found.st_size} bytes")
                with open(copy + suffix, "wb") as file:  # noqa: PTH123
                    return self._tree.hash_file(fd, _mark(found), into=file)[0]
        except FileNotFoundError:
            return None
        except OSError as error:  # a link, a folder
            if isinstance(error, PermissionError):
                raise Refused(f"{path + suffix!r} cannot be read: {error.strerror}") from None
            return None

    def _dump(self, path: str, digests: list[str | None]) -> tuple[Json, Json]:
        if digests[0] is None:
            empty: Json = {"schema": [], "tables": {}}
            return empty, empty
        connection = self._sqlite3.connect(path, isolation_level=None)
        try:
            connection.text_factory = lambda raw: raw.decode("utf-8", "surrogateescape")
            connection.set_progress_handler(self._out_of_time, 10_000)
            for pragma in ("trusted_schema=OFF", "cell_size_check=ON", "mmap_size=0", "temp_store=MEMORY"):
                connection.execute(f"PRAGMA {pragma}").close()
            return self._rows(connection)
        except (self._sqlite3.Error, ValueError, OverflowError):
            self._tree.check_time()
            damaged: Json = {"unreadable": digests}
            return damaged, {"schema": [], "tables": {}, **damaged}
        except MemoryError:
            raise Refused("too large: a row of the database") from None
        finally:
            connection.close()

    def _out_of_time(self) -> int:
        return int(time.monotonic() > self._tree._deadline)

    def _rows(self, connection: sqlite3.Connection) -> tuple[Json, Json]:
        schema = sorted(map(list, connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master")), key=dumps)
        digests: dict[str, str] = {}
        tables: dict[str, Json] = {}
        left, total = INLINE_TOTAL_BYTES, self._tree._limits["bytes"]
        for kind, name, _, sql in schema:
            if kind != "table" or name.startswith("sqlite_stat") or str(sql).upper().startswith("CREATE VIRTUAL"):
                continue
            lines = []
            quoted = name.replace('"', '""')
            for row in connection.execute(f'SELECT * FROM "{quoted}"'):
                lines.append(dumps([typed(value) for value in row]))
                total -= len(lines[-1])
                if total < 0:
                    raise Refused(f"too large: more than {self._tree._limits['bytes']} bytes of rows")
            lines.sort()
            digests[name] = sha256("\n".join(lines).encode()).hexdigest()
            left -= sum(map(len, lines))
            shown = [json.loads(line) for line in lines] if left >= 0 else None
            tables[name] = shown if shown is not None else {"sha256": digests[name], "rows": len(lines)}
        return {"schema": schema, "tables": digests}, {"schema": schema, "tables": tables}


def encoded(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()


def typed(value: Json) -> Json:
    """A column's value so that equal JSON means equal type and value."""
    if isinstance(value, bytes):
        return {"base64": encoded(value)}
    if isinstance(value, float) and value in (float("inf"), float("-inf")):
        return {"real": str(value)}
    return value


def dumps(value: Json) -> str:
    """One line of ASCII: surrogates, which stand for bytes that are not UTF-8, stay apart from every character."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


# --------------------------------------------------------------------------------------------------------------- wire


def answer(read: Any, tree: Tree, root: int, path: str, op: str) -> dict[str, Json]:
    for attempt in range(ATTEMPTS):
        try:
            tree.begin()
            material, state = read(root, path, op == "state")
            key = sha256(dumps(material).encode()).hexdigest()
            return {"key": key, "state": state} if op == "state" else {"key": key}
        except Changed as change:
            if attempt + 1 == ATTEMPTS:
                return {"error": f"it does not stand still: {change}"}
        except Refused as refusal:
            return {"error": str(refusal)}
        except MemoryError:
            return {"error": "too large: the memory of the digest helper"}
        except OSError as error:
            return {"error": f"{path!r}: {error.strerror}"}
    raise AssertionError("the last attempt returns")


def main() -> None:
    folder, options = sys.argv[1], json.loads(sys.argv[2])
    tree = Tree(options["limits"], options["masks"])
    kind = options["kind"]
    read = Git(tree).read if kind == "git" else Sqlite(tree).read if kind == "sqlite" else Files(tree).read
    root = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    for line in sys.stdin.buffer:
        reply = answer(read, tree, root, options["path"], json.loads(line)["op"])
        sys.stdout.write(dumps(reply) + "\n")
        sys.stdout.flush()
