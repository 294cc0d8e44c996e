"""Digests the state of a workspace, in a sandbox of its own whose working directory is the workspace, read-only.

The program follows no link and waits on no file. Wire: one JSON object per line. The first has the fields of
`gymcp.mcp_servers.file_state.FileState` and ``begun_ns``, and gets no answer. ``{"op": "key", "again": bool}`` ->
``{"key": hex, "masks_used"}`` with the positions of the masks that have had an effect so far; ``{"op": "state",
"since": key}`` -> the same and ``{"about", "files", "removed", "since"}`` with the files that differ from the state of
a recent key, or with all files and a null ``since`` if that key is not remembered; ``files`` is null if the state is no
tree of files. Otherwise ``{"error": words}``, with a true ``fault`` if the machine failed and not the workspace.

A file is read again only if its inode, size or times have changed, so an unchanged workspace costs one walk. A memory
map can write without changing any of these: the harness asks with ``again`` for a digest that includes such writes.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
from hashlib import sha256
from typing import Any

from gymcp.mcp_servers.native import runtime
from gymcp.mcp_servers.programs.digest.readers.outcomes import READERS, Outcomes, load_reader
from gymcp.mcp_servers.programs.digest.tree import (
    FOLDER,
    Changed,
    Entries,
    FileTreeState,
    Recorded,
    Refused,
    Tree,
    describe_root,
    open_below,
)

Json = Any

ATTEMPTS = 5
MAX_REMEMBERED_STATES = 4
"""Largest number of states to which a later state can be sent as a difference."""
MAX_REMEMBERED_ENTRIES = 200_000
FAULTS = (errno.EIO, errno.ENFILE, errno.ENODEV, errno.ESTALE)
"""Error numbers that no file can cause: the machine has failed."""


class Files:
    """Reads all files below a folder."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self, root: int, path: str) -> FileTreeState:
        with open_below(root, path, FOLDER) as folder:
            return FileTreeState(describe_root(folder), self._tree.read(folder))


class DigestService:
    """Answers requests about one workspace."""

    def __init__(self, tree: Tree, reader: Any, root: int, path: str) -> None:
        self._tree = tree
        self._reader = reader
        self._root = root
        self._path = path
        self._outcomes = Outcomes(tree)
        self._remembered: dict[str, Entries] = {}

    def answer(self, request: dict[str, Json]) -> dict[str, Json]:
        for attempt in range(ATTEMPTS):
            try:
                self._tree.begin(again=attempt > 0 or bool(request.get("again")))
                state = self._reader.read(self._root, self._path)
                answer: dict[str, Json] = {"key": key_of(state), "masks_used": sorted(self._tree.masks.used)}
                if request["op"] == "state":
                    state = self._add_outcomes(state)
                    answer |= self._describe(state, request["since"])
                self._remember(answer["key"], state.entries)
                return answer
            except Changed as change:
                if attempt + 1 == ATTEMPTS:
                    return {"error": f"it does not stand still: {change}"}
            except Refused as refusal:
                return {"error": str(refusal)}
            except MemoryError:
                return {"error": "too large: the memory of the digest helper"}
            except OSError as error:
                why: dict[str, Json] = {"error": f"{self._path!r}: {error.strerror}"}
                return {**why, "fault": True} if error.errno in FAULTS else why
        raise AssertionError("the last attempt returns")

    def _add_outcomes(self, state: FileTreeState) -> FileTreeState:
        if state.entries is None:
            return state
        with open_below(self._root, self._path, FOLDER) as folder:
            return state._replace(entries=self._outcomes.add(folder, state.entries))

    def _describe(self, state: FileTreeState, since: str | None) -> dict[str, Json]:
        if state.entries is None:
            return {"about": state.about, "files": None, "removed": [], "since": None}
        base = self._remembered.get(since or "")
        old = base or {}
        with open_below(self._root, self._path, FOLDER) as folder:
            files = {
                path: self._tree.show(folder, path, entry) | (self._outcomes.show(entry) if entry.outcome else {})
                for path, entry in state.entries.items()
                if old.get(path) != entry
            }
        removed = [path for path in old if path not in state.entries]
        return {"about": state.about, "files": files, "removed": removed, "since": None if base is None else since}

    def _remember(self, key: str, entries: Entries | None) -> None:
        if entries is None:
            return
        self._remembered.pop(key, None)
        self._remembered[key] = entries
        while len(self._remembered) > MAX_REMEMBERED_STATES or (
            len(self._remembered) > 1 and sum(map(len, self._remembered.values())) > MAX_REMEMBERED_ENTRIES
        ):
            del self._remembered[next(iter(self._remembered))]


def key_of(state: FileTreeState) -> str:
    entries = None if state.entries is None else [[path, *entry[:6]] for path, entry in state.entries.items()]
    material = [state.about if state.material is None else state.material, entries]
    return sha256(dumps(material).encode()).hexdigest()


def dumps(value: Json) -> str:
    """One line of ASCII; surrogates, which stand for bytes that are not UTF-8, differ from every real character."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def make_reader(kind: str, tree: Tree) -> Any:
    """The reader for a kind of state, imported only when needed: sqlite3 alone would add 5 ms to every start."""
    if kind == "git":
        from gymcp.mcp_servers.programs.digest.git import Git  # noqa: PLC0415

        return Git(tree)
    if kind == "sqlite":
        from gymcp.mcp_servers.programs.digest.sqlite import Sqlite  # noqa: PLC0415

        return Sqlite(tree)
    return Files(tree)


def preload() -> None:
    """Import all readers, for a fork server."""
    for part in ("git", "sqlite", "zip_times"):
        importlib.import_module(f"gymcp.mcp_servers.programs.digest.{part}")
    for kind in READERS:
        load_reader(kind)


def main() -> None:
    reader, writer = runtime.claim_wire()
    options = json.loads(reader.readline(runtime.MAX_LINE_BYTES))
    readers = tuple((each["files"], each["kind"]) for each in options["readers"])
    recorded = Recorded(options["recorded_file_bytes"], options["recorded_bytes"], readers)
    tree = Tree(options["limits"], options["masks"], options["begun_ns"], recorded)
    root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    service = DigestService(tree, make_reader(options["kind"], tree), root, options["path"])
    while line := reader.readline(runtime.MAX_LINE_BYTES):
        writer.write(dumps(service.answer(json.loads(line))).encode() + b"\n")
        writer.flush()
