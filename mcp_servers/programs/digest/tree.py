"""Reads what is below a folder for `digest`: follows no link, waits on no file, and stays within limits."""

from __future__ import annotations

import binascii
import contextlib
import errno
import fnmatch
import json
import os
import stat
import time
from collections.abc import Iterator
from hashlib import sha256
from typing import Any, NamedTuple

Json = Any

MAX_PATH_BYTES = 16_000_000
"""Of all paths together."""
INLINE_BYTES = 64_000
"""A larger file is recorded by its digest."""
INLINE_TOTAL_BYTES = 4_000_000
"""Of all contents in one recorded state, in the order of their paths; the rest is recorded by digest."""
RACY_NS = 20_000_000
"""A file changed this shortly before it was read may change again without its times telling."""
RACY_COARSE_NS = 2_100_000_000
"""The same where the file system keeps whole seconds only."""
BLOCK = 1 << 20
ROOT_MODE = 0o755
"""Of a workspace that nobody has changed: only another one is told."""
ACLS = ("system.posix_acl_access", "system.posix_acl_default")
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


class Refused(Exception):
    """The world cannot be digested; the message says why."""


class Changed(Exception):
    """Something was replaced while it was read."""


class Entry(NamedTuple):
    kind: str
    mode: str
    """Permission bits, octal."""
    content: str = ""
    """Of a file its digest, of a link its target, of a device its numbers."""
    size: int = 0
    """Of a file."""
    attributes: str = ""
    """Extended attributes of a file or folder as `attributes_of` gives them."""
    links: int = 1
    """Names that a file has; not which: in an overlay the names of one file can have different inode numbers."""
    inline: bool = False
    """Whether a recorded state holds the file's content."""


Entries = dict[str, Entry]


class World(NamedTuple):
    about: Json
    """What is recorded beside the files."""
    entries: Entries | None = None
    """None where the world is no tree of files."""
    material: Json = None
    """What the key is made of in place of `about`; None: `about` itself."""


class Tree:
    """Everything below a folder, by path. A file whose inode, size and times are those of the last walk is not read."""

    def __init__(self, limits: dict[str, Json], masks: list[str], begun_ns: int = 0) -> None:
        """`begun_ns`: when nothing had been written yet. A file that was, by a memory map too, has a later ctime."""
        self.limits = limits
        self.deadline = 0.0
        self.again = False
        self._masks = masks
        self.unwritten_ns = begun_ns - RACY_COARSE_NS
        """A file with an older ctime was not written to."""
        self._known: dict[str, tuple[tuple[int, ...], str, str]] = {}

    def begin(self, *, again: bool = False) -> None:
        """Starts the clock. `again`: files that may have been written to are read whatever their times say.

        The first write through a memory map changes the ctime, as does the copy of a lower layer's file that is opened
        for writing; later writes to the same page change no time before the kernel has written it back.
        """
        self.deadline = time.monotonic() + self.limits["seconds"]
        self.again = again

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise Refused(f"too large: reading it takes more than {self.limits['seconds']:g} s")

    def read(self, root: int, skip: frozenset[str] = frozenset()) -> Entries:
        """Entries in the order of their paths. `skip`: top-level names left out. Raises Refused, Changed."""
        self._entries: Entries = {}
        self._left = {"entries": self.limits["entries"], "bytes": self.limits["bytes"], "paths": MAX_PATH_BYTES}
        self._still_known: dict[str, tuple[tuple[int, ...], str, str]] = {}
        self._read_folder(root, "", 0, skip)
        self._known = self._still_known
        left, found = INLINE_TOTAL_BYTES, {}
        for path in sorted(self._entries):
            entry = self._entries[path]
            if entry.kind == "file" and entry.size <= INLINE_BYTES:
                left -= entry.size
                entry = entry._replace(inline=left >= 0)
            found[path] = entry
        return found

    def _read_folder(self, fd: int, prefix: str, depth: int, skip: frozenset[str]) -> None:
        if depth > self.limits["depth"]:
            raise Refused(f"too large: folders are nested more than {self.limits['depth']} deep")
        self.check_time()
        for name in self._names(fd, prefix, skip):
            path = prefix + name
            try:
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                kind, mode = KINDS.get(stat.S_IFMT(found.st_mode), "device"), f"{stat.S_IMODE(found.st_mode):o}"
                content, size, attributes, links = "", 0, "", 1
                if kind == "file":
                    content, attributes = self._file_digest(fd, name, path, found)
                    size, links = found.st_size, found.st_nlink
                elif kind == "link":
                    content = os.readlink(name, dir_fd=fd)
                elif kind == "device":
                    content = f"{os.major(found.st_rdev)}:{os.minor(found.st_rdev)}"
                self._entries[path] = Entry(kind, mode, content, size, attributes, links)
                if kind == "folder":
                    child = os.open(name, FOLDER, dir_fd=fd)
                    try:
                        if attributes := attributes_of(child):
                            self._spend("bytes", len(attributes))
                            self._entries[path] = Entry(kind, mode, attributes=attributes)
                        self._read_folder(child, path + "/", depth + 1, frozenset())
                    finally:
                        os.close(child)
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
        return names

    def _spend(self, what: str, amount: int) -> None:
        self._left[what] -= amount
        if self._left[what] < 0:
            limit = MAX_PATH_BYTES if what == "paths" else self.limits[what]
            raise Refused(f"too large: more than {limit} {'bytes of paths' if what == 'paths' else what}")

    def _file_digest(self, folder: int, name: str, path: str, found: os.stat_result) -> tuple[str, str]:
        """(digest, extended attributes)."""
        self._spend("bytes", found.st_size)
        mark = mark_of(found)
        known = self._known.get(path)
        if known is not None and known[0] == mark and not (self.again and found.st_ctime_ns >= self.unwritten_ns):
            self._still_known[path] = known
            return known[1:]
        begun = time.time_ns()
        fd = os.open(name, FILE, dir_fd=folder)
        try:
            digest, _ = self.hash_file(fd, mark)
            attributes = attributes_of(fd)
        finally:
            os.close(fd)
        self._spend("bytes", len(attributes))
        slack = RACY_COARSE_NS if found.st_ctime_ns % 1_000_000_000 == 0 else RACY_NS
        if found.st_ctime_ns + slack < begun:
            self._still_known[path] = (mark, digest, attributes)
        return digest, attributes

    def hash_file(self, fd: int, mark: tuple[int, ...], *, keep: bool = False, into: Any = None) -> tuple[str, bytes]:
        """(digest, content or b""). Raises Changed where the file is not, or no longer, the one with this mark."""
        if mark_of(os.fstat(fd)) != mark:
            raise Changed("a file was replaced")
        hashed, kept, left = sha256(), [], mark[2]
        while block := os.read(fd, BLOCK):
            left -= len(block)
            if left < 0:
                break
            hashed.update(block)
            if keep:
                kept.append(block)
            if into is not None:
                into.write(block)
            self.check_time()
        if left != 0 or mark_of(os.fstat(fd)) != mark:
            raise Changed("a file changed while it was read")
        return hashed.hexdigest(), b"".join(kept)

    def show(self, root: int, path: str, entry: Entry) -> Json:
        """The entry as it is recorded. Raises Changed where a file's content is not the digested one any more."""
        shown: dict[str, Json] = {"type": entry.kind, "mode": entry.mode}
        if entry.attributes:
            shown["attributes"] = json.loads(entry.attributes)
        if entry.links > 1:
            shown["links"] = entry.links
        if entry.kind == "link":
            shown["target"] = entry.content
        elif entry.kind == "device":
            shown["device"] = entry.content
        elif entry.kind == "file" and not entry.inline:
            shown.update(sha256=entry.content, size=entry.size)
        elif entry.kind == "file":
            try:
                with opened(root, path, FILE) as fd:
                    digest, content = self.hash_file(fd, mark_of(os.fstat(fd)), keep=True)
            except OSError as error:
                raise Changed(f"{path!r}: {error.strerror}") from None
            if digest != entry.content:
                raise Changed(f"{path!r} changed between digest and state")
            try:
                shown["text"] = content.decode()
            except UnicodeDecodeError:
                shown["base64"] = encoded(content)
        return shown


def root_of(folder: int) -> dict[str, Json]:
    """The folder itself, if it is not as it was made: its mode, its extended attributes."""
    told: dict[str, Json] = {}
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode != ROOT_MODE:
        told["mode"] = f"{mode:o}"
    if attributes := attributes_of(folder):
        told["attributes"] = json.loads(attributes)
    return told


def attributes_of(fd: int) -> str:
    """A user's extended attributes and access lists of an open file or folder, as one text; mostly an empty one.

    Left out are those that an overlay keeps for itself, and the kernel's: labels, capabilities, and users of an access
    list, whose numbers are the host's.
    """
    try:
        names = [name for name in os.listxattr(fd) if name.startswith("user.") or name in ACLS]
        found = {name: os.getxattr(fd, name) for name in names if not name.startswith("user.overlay.")}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return ""
        raise Changed(f"extended attributes: {error.strerror}") from None
    if not found:
        return ""
    told = {name: _rights(value) if name in ACLS else encoded(value) for name, value in found.items()}
    return json.dumps(told, sort_keys=True, separators=(",", ":"))


def _rights(access: bytes) -> Json:
    """[tag, permissions] of each line of an access list."""
    lines = [access[at : at + 4] for at in range(4, len(access) - 7, 8)]
    return [[int.from_bytes(line[:2], "little"), int.from_bytes(line[2:], "little")] for line in lines]


def mark_of(found: os.stat_result) -> tuple[int, ...]:
    """Two files with the same mark have the same content, unless one was written moments ago."""
    kind = stat.S_IFMT(found.st_mode)
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, kind)


@contextlib.contextmanager
def opened(root: int, path: str, flags: int) -> Iterator[int]:
    """The file or folder at a relative path, with no link anywhere on the way. Raises OSError, Refused."""
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


def encoded(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()
