"""The world of a git repository, for `digest`."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from gymcp.mcp_servers.programs.digest.tree import BLOCK, FILE, FOLDER, Refused, Tree, World, mark_of, opened, root_of

Json = Any

PSEUDO_REFS = ("MERGE_HEAD", "CHERRY_PICK_HEAD", "REVERT_HEAD", "REBASE_HEAD")
TOLD = frozenset({"HEAD", "refs", "packed-refs", "index", *PSEUDO_REFS})
"""Told as what they mean."""
NOTES = frozenset({"objects", "logs", "ORIG_HEAD", "FETCH_HEAD", "COMMIT_EDITMSG", "gc.log"})
"""Not digested: what git keeps beside the state, which differs with times and with what was packed."""
NOTES_BELOW = (
    "hooks/*.sample",
    "info/refs",
    "sharedindex.*",
    *(f"{folder}/*/{name}" for folder in ("modules", "worktrees") for name in sorted(NOTES | {"index"})),
    *(f"modules/*/{name}" for name in ("hooks/*.sample", "info/refs", "packed-refs", "sharedindex.*")),
)
ASSUME_UNCHANGED, EXTENDED, SKIP_WORK_TREE, INTENT_TO_ADD = 0x8000, 0x4000, 0x4000, 0x2000
"""Flags of an index entry; the last two are in its extension."""


class Git:
    """HEAD, refs, index entries and work tree; without git, which a repository's settings can make run programs.

    The rest of ``.git`` (settings, hooks, a merge or rebase that is under way) counts for the digest, and is not told.
    """

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._settings = Tree(tree.limits, list(NOTES_BELOW), tree.unwritten_ns)

    def read(self, root: int, path: str) -> World:
        about: dict[str, Json] = {"head": None, "refs": {}, "index": []}
        with opened(root, path, FOLDER) as folder:
            about |= root_of(folder)
            try:
                with opened(folder, ".git", FOLDER) as git:
                    about |= self._about(git)
                    material = [about, self._other(git)]
            except OSError:  # a link, or the file of a linked work tree: then it is a file like any other
                return World(about, self._tree.read(folder))
            return World(about, self._tree.read(folder, skip=frozenset({".git"})), material)

    def _other(self, git: int) -> Json:
        """What is in ``.git`` beside what it tells."""
        self._settings.begin(again=self._tree.again)
        entries = self._settings.read(git, skip=TOLD | NOTES)
        alternates = self._content(git, "objects/info/alternates")
        return [root_of(git), alternates, [[path, *entry[:6]] for path, entry in entries.items()]]

    def _about(self, git: int) -> dict[str, Json]:
        refs = self._packed_refs(git) | self._loose_refs(git, "refs", 0)
        refs |= {name: found for name in PSEUDO_REFS if (found := self._content(git, name))}
        return {"head": self._content(git, "HEAD"), "refs": refs, "index": self._index(git)}

    def _bytes(self, folder: int, path: str) -> bytes | None:
        try:
            with opened(folder, path, FILE) as fd:
                found = os.fstat(fd)
                if not stat.S_ISREG(found.st_mode):
                    return None
                if found.st_size > BLOCK * 32:
                    raise Refused(f"too large: {path!r} of the repository has {found.st_size} bytes")
                return self._tree.hash_file(fd, mark_of(found), keep=True)[1]
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
    """[path, mode, object, stage] of each entry of an index file, version 2 to 4; times and inodes are left out.

    Flags that hide a change of the work tree from git follow behind, if there are any.
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
