"""Reads a world from its files: run or forked in a wall of its own, with the workspace, where it starts, read-only.

It follows no link and waits on no file. Wire: one JSON object per line, first ``kind``, ``path``, ``masks``, ``limits``
and ``begun_ns``, which has no answer. ``{"op": "key", "again": bool}`` -> ``{"key": hex}``; ``{"op": "state", "since":
key}`` -> ``{"key", "about", "files", "removed", "since"}`` with the files that differ from those of a key it was asked
for lately, or all and a null `since` where it does not remember; files is null where the world is no tree. Else
``{"error": words}``, with a true ``fault`` where the machine is to blame and not the world.

A file is read again only if its inode, size or times have changed, so an unchanged world costs one walk. A memory map
can write without changing any of these: that is seen when the harness asks for it, with ``again``.
"""

from __future__ import annotations

import errno
import importlib
import json
import os
from hashlib import sha256
from typing import Any

from gymcp.mcp_servers.native import runtime
from gymcp.mcp_servers.programs.digest.tree import FOLDER, Changed, Entries, Refused, Tree, World, opened, root_of

Json = Any

ATTEMPTS = 5
REMEMBERED = 4
"""Worlds that a later state may be told as a difference to."""
REMEMBERED_ENTRIES = 200_000
FAULTS = (errno.EIO, errno.ENFILE, errno.ENODEV, errno.ESTALE)
"""No file can be such that a reader gets one of these."""


class Files:
    """All files."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def read(self, root: int, path: str) -> World:
        with opened(root, path, FOLDER) as folder:
            return World(root_of(folder), self._tree.read(folder))


class Teller:
    """Answers requests about one world."""

    def __init__(self, tree: Tree, reader: Any, root: int, path: str) -> None:
        self._tree = tree
        self._reader = reader
        self._root = root
        self._path = path
        self._remembered: dict[str, Entries] = {}

    def answer(self, request: dict[str, Json]) -> dict[str, Json]:
        for attempt in range(ATTEMPTS):
            try:
                self._tree.begin(again=attempt > 0 or bool(request.get("again")))
                world = self._reader.read(self._root, self._path)
                key = key_of(world)
                told = {"key": key, **self._tell(world, request["since"])} if request["op"] == "state" else {"key": key}
                self._remember(key, world.entries)
                return told
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

    def _tell(self, world: World, since: str | None) -> dict[str, Json]:
        if world.entries is None:
            return {"about": world.about, "files": None, "removed": [], "since": None}
        base = self._remembered.get(since or "")
        old = base or {}
        with opened(self._root, self._path, FOLDER) as folder:
            files = {
                path: self._tree.show(folder, path, entry)
                for path, entry in world.entries.items()
                if old.get(path) != entry
            }
        removed = [path for path in old if path not in world.entries]
        return {"about": world.about, "files": files, "removed": removed, "since": None if base is None else since}

    def _remember(self, key: str, entries: Entries | None) -> None:
        if entries is None:
            return
        self._remembered.pop(key, None)
        self._remembered[key] = entries
        while len(self._remembered) > REMEMBERED or (
            len(self._remembered) > 1 and sum(map(len, self._remembered.values())) > REMEMBERED_ENTRIES
        ):
            del self._remembered[next(iter(self._remembered))]


def key_of(world: World) -> str:
    entries = None if world.entries is None else [[path, *entry[:6]] for path, entry in world.entries.items()]
    material = [world.about if world.material is None else world.material, entries]
    return sha256(dumps(material).encode()).hexdigest()


def dumps(value: Json) -> str:
    """One line of ASCII: surrogates, which stand for bytes that are not UTF-8, stay apart from every character."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def reader_of(kind: str, tree: Tree) -> Any:
    """Only what the kind needs is imported: sqlite3 alone would be 5 ms of every start."""
    if kind == "git":
        from gymcp.mcp_servers.programs.digest.git import Git  # noqa: PLC0415

        return Git(tree)
    if kind == "sqlite":
        from gymcp.mcp_servers.programs.digest.sqlite import Sqlite  # noqa: PLC0415

        return Sqlite(tree)
    return Files(tree)


def preload() -> None:
    """Where it is forked for every world, all readers are imported once."""
    for part in ("git", "sqlite"):
        importlib.import_module(f"gymcp.mcp_servers.programs.digest.{part}")


def main() -> None:
    reader, writer = runtime.claim_wire()
    options = json.loads(reader.readline(runtime.MAX_LINE_BYTES))
    tree = Tree(options["limits"], options["masks"], options["begun_ns"])
    root = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    teller = Teller(tree, reader_of(options["kind"], tree), root, options["path"])
    while line := reader.readline(runtime.MAX_LINE_BYTES):
        writer.write(dumps(teller.answer(json.loads(line))).encode() + b"\n")
        writer.flush()
