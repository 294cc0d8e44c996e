"""The state of a git repository for the digest program."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from gymcp.mcp_servers.programs.digest.tree import (
    BLOCK_BYTES,
    FILE,
    FOLDER,
    FileTreeState,
    Refused,
    Tree,
    describe_root,
    file_mark,
    open_below,
)

Json = Any

PSEUDO_REFS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD")
PARSED_NAMES = frozenset({"HEAD", "refs", "packed-refs", "index", *PSEUDO_REFS})
"""Names in ``.git`` whose meaning is recorded rather than their bytes."""
IGNORED_NAMES = frozenset({"objects", "logs", "ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG", "gc.log"})
"""Names in ``.git`` that are not digested: they are no part of the state, and depend on times and on packing."""
IGNORED_BELOW = (
    "hooks/*.sample",
    "info/refs",
    "sharedindex.*",
    *(f"{folder}/*/{name}" for folder in ("modules", "worktrees") for name in sorted(IGNORED_NAMES | {"index"})),
    *(f"modules/*/{name}" for name in ("hooks/*.sample", "info/refs", "packed-refs", "sharedindex.*")),
)
ASSUME_UNCHANGED, EXTENDED, SKIP_WORK_TREE, INTENT_TO_ADD = 0x8000, 0x4000, 0x4000, 0x2000
"""Flags of an index entry; the last two are in its extended flags."""


class Git:
    """Reads HEAD, refs, index entries and work tree, without git: a repository's settings can make git run programs.

    The rest of ``.git`` (settings, hooks, a merge or rebase under way) counts for the digest but is not recorded.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._settings = Tree(tree.limits, list(IGNORED_BELOW), tree.unwritten_ns)

    def read(self, root: int, path: str) -> FileTreeState:
        about: dict[str, Json] = {"head": None, "refs": {}, "index": []}
        with open_below(root, path, FOLDER) as folder:
            about |= describe_root(folder)
            try:
                with open_below(folder, ".git", FOLDER) as git:
                    about |= self._about(git)
                    material = [about, self._other(git)]
            except OSError:  # a link, or the file of a linked work tree: an ordinary file for this purpose
                return FileTreeState(about, self._tree.read(folder))
            return FileTreeState(about, self._tree.read(folder, skip=frozenset({".git"})), material)

    def _other(self, git: int) -> Json:
        """Digest material from the rest of ``.git``."""
        self._settings.begin(again=self._tree.again)
        entries = self._settings.read(git, skip=PARSED_NAMES | IGNORED_NAMES)
        alternates = self._content(git, "objects/info/alternates")
        return [describe_root(git), alternates, [[path, *entry[:6]] for path, entry in entries.items()]]

    def _about(self, git: int) -> dict[str, Json]:
        refs = self._read_packed_refs(git) | self._read_loose_refs(git, "refs", 0)
        refs |= {name: content for name in PSEUDO_REFS if (content := self._content(git, name))}
        return {"head": self._content(git, "HEAD"), "refs": refs, "index": self._index(git)}

    def _bytes(self, folder: int, path: str) -> bytes | None:
        try:
            with open_below(folder, path, FILE) as fd:
                status = os.fstat(fd)
                if not stat.S_ISREG(status.st_mode):
                    return None
                if status.st_size > BLOCK_BYTES * 32:
                    raise Refused(f"too large: {path!r} of the repository has {status.st_size} bytes")
                return self._tree.hash_file(fd, file_mark(status), keep=True)[1]
        except OSError:
            return None

    def _content(self, folder: int, path: str) -> str | None:
        content = self._bytes(folder, path)
        return None if content is None else content.decode("utf-8", "surrogateescape").strip()

    def _read_packed_refs(self, git: int) -> dict[str, Json]:
        lines = (self._content(git, "packed-refs") or "").split("\n")
        pairs = [line.split(" ", 1) for line in lines if line and line[0] not in "#^"]
        return {pair[1]: pair[0] for pair in pairs if len(pair) == 2}

    def _read_loose_refs(self, git: int, path: str, depth: int) -> dict[str, Json]:
        refs: dict[str, Json] = {}
        if depth > 20:
            raise Refused("too large: refs are nested more than 20 deep")
        self._tree.check_time()
        try:
            with open_below(git, path, FOLDER) as folder:
                names = sorted(os.listdir(folder))  # noqa: PTH208
        except NotADirectoryError:
            content = self._content(git, path)
            return {} if content is None else {path: content}
        except OSError:
            return {}
        if len(names) > 50_000:
            raise Refused(f"too large: more than 50000 refs in {path!r}")
        for name in names:
            refs |= self._read_loose_refs(git, f"{path}/{name}", depth + 1)
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
    """[path, mode, object, stage] of each entry of an index file, version 2 to 4, without times and inodes.

    After these four come the names of the flags, if any, that hide a change of the work tree from git.
    """
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4) or count > len(data) // 62:
        raise ValueError("not an index")
    at, path = 12, b""
    for _ in range(count):
        start, flags = at, int.from_bytes(data[at + 60 : at + 62], "big")
        mode, object_id = int.from_bytes(data[at + 24 : at + 28], "big"), data[at + 40 : at + 60].hex()
        marks = ["assume-unchanged"] if flags & ASSUME_UNCHANGED else []
        if version >= 3 and flags & EXTENDED:
            more = int.from_bytes(data[at + 62 : at + 64], "big")
            marks += ["skip-worktree"] if more & SKIP_WORK_TREE else []
            marks += ["intent-to-add"] if more & INTENT_TO_ADD else []
            at += 2
        at += 62
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
        yield [path.decode("utf-8", "surrogateescape"), f"{mode:o}", object_id, (flags >> 12) & 3, *marks]
