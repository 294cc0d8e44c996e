"""Reads the files below a folder for the digest program: follows no link, waits on no file, stays within limits."""

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

from gymcp.mcp_servers.programs.digest.masks import MAX_MASKED_BYTES, Masks

Json = Any

MAX_PATH_BYTES = 16_000_000
"""Most bytes of all paths together."""
RACY_NS = 20_000_000
"""Nanoseconds between a change and a read within which the file may change again with the same times."""
RACY_COARSE_NS = 2_100_000_000
"""As `RACY_NS`, for a file system that stores times in whole seconds."""
BLOCK_BYTES = 1 << 20
ROOT_MODE = 0o755
"""Mode of a new workspace folder: only a different mode is recorded."""
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
    """The workspace cannot be digested; the message gives the reason."""


class Changed(Exception):
    """A file or folder was replaced while it was read."""


class Entry(NamedTuple):
    kind: str
    mode: str
    """Permission bits, octal."""
    content: str = ""
    """Digest of a file, target of a link, numbers of a device."""
    size: int = 0
    """Size of a file in bytes, without what masks hide."""
    attributes: str = ""
    """Extended attributes of a file or folder as `attributes_of` returns them."""
    links: int = 1
    """Number of names of a file. The names themselves are unknown: in an overlay they can have different inodes."""
    inline: bool = False
    """True if a recorded state has the file's content."""
    outcome: str = ""
    """Digest of the outcome of the file's reader, which a recorded state has instead of the content."""


Entries = dict[str, Entry]
_Known = tuple[tuple[int, ...], str, str, int]
"""(mark, digest, extended attributes, size) of a file."""


class Recorded(NamedTuple):
    """Limits of a recorded state, and the readers of its files."""

    file_bytes: int = 1_000_000
    """Largest content."""
    total_bytes: int = 4_000_000
    """Most bytes of all contents, and of all outcomes of readers."""
    readers: tuple[tuple[str, str], ...] = ()
    """(pattern of paths, kind) of each reader."""

    def reader_of(self, path: str) -> str | None:
        """Kind of the first reader for the path; None if there is none."""
        return next((kind for pattern, kind in self.readers if fnmatch.fnmatchcase(path, pattern)), None)

    def choose(self, sizes: dict[str, int]) -> frozenset[str]:
        """Paths of the contents that are recorded: the smallest ones that fit, equal ones in the order of their paths.

        So the choice depends on the state alone, and a large file never displaces a smaller one.
        """
        small = {path: size for path, size in sizes.items() if size <= self.file_bytes}
        if sum(small.values()) <= self.total_bytes:
            return frozenset(small)
        left, chosen = self.total_bytes, []
        for size, path in sorted((size, path) for path, size in small.items()):
            left -= size
            if left < 0:
                break
            chosen.append(path)
        return frozenset(chosen)


class FileTreeState(NamedTuple):
    """The state of a workspace as a reader returns it."""

    about: Json
    """Part of the recorded state beside the files."""
    entries: Entries | None = None
    """Files by path; None if the state is no tree of files."""
    material: Json = None
    """Input of the digest instead of `about`; None for `about` itself."""


class Tree:
    """Reads everything below a folder, by path. A file with the inode, size and times of the last walk is not read."""

    def __init__(
        self, limits: dict[str, Json], masks: list[Json], begun_ns: int = 0, recorded: Recorded | None = None
    ) -> None:
        """`begun_ns` is a time before any write. A file written later, also by a memory map, has a later ctime."""
        self.limits = limits
        self.recorded = recorded or Recorded()
        self.deadline = 0.0
        self.again = False
        self.masks = Masks(masks)
        self.unwritten_ns = begun_ns - RACY_COARSE_NS
        """Time such that a file with an older ctime was not written to."""
        self._known: dict[str, _Known] = {}

    def begin(self, *, again: bool = False) -> None:
        """Start the time limit. With `again`, files that may have been written to are read even if their times match.

        The first write through a memory map changes the ctime, as does the copy-up of a lower layer's file that is
        opened for writing; later writes to the same page change no time before the kernel writes the page back.
        """
        self.deadline = time.monotonic() + self.limits["seconds"]
        self.again = again

    def check_time(self) -> None:
        if time.monotonic() > self.deadline:
            raise Refused(f"too large: reading it takes more than {self.limits['seconds']:g} s")

    def read(self, root: int, skip: frozenset[str] = frozenset()) -> Entries:
        """Entries in the order of their paths, without the top-level names in `skip`. Raises Refused, Changed."""
        self._entries: Entries = {}
        self._left = {"entries": self.limits["entries"], "bytes": self.limits["bytes"], "paths": MAX_PATH_BYTES}
        self._still_known: dict[str, _Known] = {}
        self._read_folder(root, "", 0, skip)
        self._known = self._still_known
        inline = self.recorded.choose(
            {
                path: entry.size
                for path, entry in self._entries.items()
                if entry.kind == "file" and self.recorded.reader_of(path) is None
            }
        )
        return {
            path: self._entries[path]._replace(inline=True) if path in inline else self._entries[path]
            for path in sorted(self._entries)
        }

    def _read_folder(self, fd: int, prefix: str, depth: int, skip: frozenset[str]) -> None:
        if depth > self.limits["depth"]:
            raise Refused(f"too large: folders are nested more than {self.limits['depth']} deep")
        self.check_time()
        for name in self._names(fd, prefix, skip):
            path = prefix + name
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                kind, mode = KINDS.get(stat.S_IFMT(status.st_mode), "device"), f"{stat.S_IMODE(status.st_mode):o}"
                content, size, attributes, links = "", 0, "", 1
                if kind == "file":
                    content, attributes, size = self._file_digest(fd, name, path, status)
                    links = status.st_nlink
                elif kind == "link":
                    content = os.readlink(name, dir_fd=fd)
                elif kind == "device":
                    content = f"{os.major(status.st_rdev)}:{os.minor(status.st_rdev)}"
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
            except OSError as error:  # it was removed, or replaced by a link
                raise Changed(f"{path!r}: {error.strerror}") from None

    def _names(self, fd: int, prefix: str, skip: frozenset[str]) -> list[str]:
        names = []
        with os.scandir(fd) as entries:
            for entry in entries:
                self._spend("entries", 1)
                self._spend("paths", len(prefix) + len(entry.name))
                path = prefix + entry.name
                if entry.name not in skip and not self.masks.leaves_out(path):
                    names.append(entry.name)
        return names

    def _spend(self, what: str, amount: int) -> None:
        self._left[what] -= amount
        if self._left[what] < 0:
            limit = MAX_PATH_BYTES if what == "paths" else self.limits[what]
            raise Refused(f"too large: more than {limit} {'bytes of paths' if what == 'paths' else what}")

    def _file_digest(self, folder: int, name: str, path: str, status: os.stat_result) -> tuple[str, str, int]:
        """(digest, extended attributes, size). Digest and size are those of the content without what masks hide."""
        self._spend("bytes", status.st_size)
        mark = file_mark(status)
        known = self._known.get(path)
        if known is not None and known[0] == mark and not (self.again and status.st_ctime_ns >= self.unwritten_ns):
            self._still_known[path] = known
            return known[1:]
        begun = time.time_ns()
        fd = os.open(name, FILE, dir_fd=folder)
        try:
            digest, size, _ = self._hash_masked(fd, mark, path, keep=False)
            attributes = attributes_of(fd)
        finally:
            os.close(fd)
        self._spend("bytes", len(attributes))
        slack = RACY_COARSE_NS if status.st_ctime_ns % 1_000_000_000 == 0 else RACY_NS
        if status.st_ctime_ns + slack < begun:
            self._still_known[path] = (mark, digest, attributes, size)
        return digest, attributes, size

    def _hash_masked(self, fd: int, mark: tuple[int, ...], path: str, *, keep: bool) -> tuple[str, int, bytes]:
        """(digest, size, content or b"") of a file without what masks hide. Raises Changed, Refused."""
        if not self.masks.hides_parts(path):
            digest, content = self.hash_file(fd, mark, keep=keep)
            return digest, mark[2], content
        if mark[2] > MAX_MASKED_BYTES:
            raise Refused(f"too large: {path!r} has {mark[2]} bytes; parts are hidden of at most {MAX_MASKED_BYTES}")
        content = self.masks.hide(path, self.hash_file(fd, mark, keep=True)[1])
        return sha256(content).hexdigest(), len(content), content

    def read_content(self, root: int, path: str, entry: Entry) -> bytes:
        """Content of a file without what masks hide. Raises Changed if it is no longer the digested one."""
        try:
            with open_below(root, path, FILE) as fd:
                digest, _, content = self._hash_masked(fd, file_mark(os.fstat(fd)), path, keep=True)
        except OSError as error:
            raise Changed(f"{path!r}: {error.strerror}") from None
        if digest != entry.content:
            raise Changed(f"{path!r} changed between digest and state")
        return content

    def hash_file(self, fd: int, mark: tuple[int, ...], *, keep: bool = False, into: Any = None) -> tuple[str, bytes]:
        """(digest, content or b""). Raises Changed if the file is not, or no longer, the one with this mark."""
        if file_mark(os.fstat(fd)) != mark:
            raise Changed("a file was replaced")
        digest, blocks, left = sha256(), [], mark[2]
        while block := os.read(fd, BLOCK_BYTES):
            left -= len(block)
            if left < 0:
                break
            digest.update(block)
            if keep:
                blocks.append(block)
            if into is not None:
                into.write(block)
            self.check_time()
        if left != 0 or file_mark(os.fstat(fd)) != mark:
            raise Changed("a file changed while it was read")
        return digest.hexdigest(), b"".join(blocks)

    def show(self, root: int, path: str, entry: Entry) -> Json:
        """The entry as it is recorded. Raises Changed if a file's content is no longer the digested one."""
        record: dict[str, Json] = {"type": entry.kind, "mode": entry.mode}
        if entry.attributes:
            record["attributes"] = json.loads(entry.attributes)
        if entry.links > 1:
            record["links"] = entry.links
        if entry.kind == "link":
            record["target"] = entry.content
        elif entry.kind == "device":
            record["device"] = entry.content
        elif entry.kind == "file" and not entry.inline:
            record.update(sha256=entry.content, size=entry.size)
        elif entry.kind == "file":
            content = self.read_content(root, path, entry)
            try:
                record["text"] = content.decode()
            except UnicodeDecodeError:
                record["base64"] = encode_base64(content)
        return record


def describe_root(folder: int) -> dict[str, Json]:
    """Mode and extended attributes of the folder itself, as far as they differ from those of a new folder."""
    changes: dict[str, Json] = {}
    mode = stat.S_IMODE(os.fstat(folder).st_mode)
    if mode != ROOT_MODE:
        changes["mode"] = f"{mode:o}"
    if attributes := attributes_of(folder):
        changes["attributes"] = json.loads(attributes)
    return changes


def attributes_of(fd: int) -> str:
    """User attributes and access control lists of an open file or folder, as one text, which is usually empty.

    Left out are the attributes of an overlay and those of the kernel: labels, capabilities, and the users in an access
    control list, whose numbers are the host's.
    """
    try:
        names = [name for name in os.listxattr(fd) if name.startswith("user.") or name in ACLS]
        attributes = {name: os.getxattr(fd, name) for name in names if not name.startswith("user.overlay.")}
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.ENOSYS):
            return ""
        raise Changed(f"extended attributes: {error.strerror}") from None
    if not attributes:
        return ""
    texts = {name: _rights(value) if name in ACLS else encode_base64(value) for name, value in attributes.items()}
    return json.dumps(texts, sort_keys=True, separators=(",", ":"))


def _rights(access: bytes) -> Json:
    """[tag, permissions] of each line of an access control list."""
    lines = [access[at : at + 4] for at in range(4, len(access) - 7, 8)]
    return [[int.from_bytes(line[:2], "little"), int.from_bytes(line[2:], "little")] for line in lines]


def file_mark(status: os.stat_result) -> tuple[int, ...]:
    """Identity of a file's content: files with the same mark are equal unless one was written moments ago."""
    kind = stat.S_IFMT(status.st_mode)
    return (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns, kind)


@contextlib.contextmanager
def open_below(root: int, path: str, flags: int) -> Iterator[int]:
    """Open the file or folder at a relative path without following any link. Raises OSError, Refused."""
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


def encode_base64(content: bytes) -> str:
    return binascii.b2a_base64(content, newline=False).decode()
