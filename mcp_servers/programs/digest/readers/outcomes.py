"""Runs readers on the files of a state, and keeps what they return until another state no longer needs it.

An outcome is what a recorded state has of a file beside its size and digest: ``{"reader": kind, "value": ...}``;
``{"reader": kind, "unreadable": reason}`` if the file is not of that kind, or ``{"reader": kind, "cut": reason}`` if it
is beyond a limit. It depends on the state alone, so equal states have equal records.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

from gymcp.mcp_servers.programs.digest.readers.source import Source, TooLarge, Unreadable
from gymcp.mcp_servers.programs.digest.tree import Entries, Entry, Refused, Tree

Json = Any

MAX_READ_BYTES = 32_000_000
"""Largest file that is given to a reader."""
MAX_READ_FILES = 1_000
READERS = {
    "csv": "csv_rows",
    "docx": "docx_text",
    "json": "json_value",
    "sqlite": "sqlite_tables",
    "xlsx": "xlsx_cells",
}
"""Module of each kind of reader, in this folder: its ``read(source)`` returns JSON."""


class Outcomes:
    """The outcomes of the readers of one workspace."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._known: dict[Json, bytes] = {}
        """(kind, ending of the path, digests of the contents) -> outcome as JSON, of the last state's files."""
        self._by_digest: dict[str, bytes] = {}

    def add(self, root: int, entries: Entries) -> Entries:
        """Entries with the digests of their outcomes. Raises Changed, Refused."""
        recorded = self._tree.recorded
        if not recorded.readers:
            return entries
        matching = {
            path: kind
            for path, entry in entries.items()
            if entry.kind == "file" and (kind := recorded.reader_of(path)) is not None
        }
        if len(matching) > MAX_READ_FILES:
            raise Refused(f"too large: {len(matching)} files with a reader; at most {MAX_READ_FILES} are read")
        still_known = {}
        outcomes = {}
        for path, kind in matching.items():
            beside = {suffix: path + suffix for suffix in _suffixes(kind) if _is_file(entries, path + suffix)}
            contents = ((suffix, entries[name].content) for suffix, name in beside.items())
            ending = "".join(path.lower().rpartition(".")[1:])  # readers see the path: csv looks for .tsv
            identity = (kind, ending, entries[path].content, *contents)
            outcomes[path] = self._known.get(identity) or self._read(root, entries, path, kind, beside)
            still_known[identity] = outcomes[path]
        self._known = still_known
        return {**entries, **self._choose(entries, matching, outcomes)}

    def show(self, entry: Entry) -> dict[str, Json]:
        """The outcome of an entry that has one."""
        return json.loads(self._by_digest[entry.outcome])  # type: ignore[no-any-return]

    def _choose(self, entries: Entries, kinds: Mapping[str, str], outcomes: Mapping[str, bytes]) -> Entries:
        """Entries of the files with readers, with the outcomes that fit; the others are cut."""
        recorded = self._tree.recorded
        chosen = recorded.choose({path: len(outcome) for path, outcome in outcomes.items()})
        marked: Entries = {}
        self._by_digest = {}
        for path, outcome in outcomes.items():
            cut = {"reader": kinds[path], "cut": f"its value has {len(outcome)} bytes as JSON"}
            shown = outcome if path in chosen else _dumps(cut)
            digest = sha256(shown).hexdigest()
            self._by_digest[digest] = shown
            marked[path] = entries[path]._replace(outcome=digest)
        return marked

    def _read(self, root: int, entries: Entries, path: str, kind: str, beside: Mapping[str, str]) -> bytes:
        self._tree.check_time()
        try:
            if sum(entries[name].size for name in (path, *beside.values())) > MAX_READ_BYTES:
                raise TooLarge(f"more than {MAX_READ_BYTES} bytes")
            source = Source(
                path=path,
                content=self._tree.read_content(root, path, entries[path]),
                beside={suffix: self._tree.read_content(root, name, entries[name]) for suffix, name in beside.items()},
                deadline=self._tree.deadline,
            )
            return _dumps({"reader": kind, "value": _value(load_reader(kind), source)})
        except Unreadable as error:
            self._tree.check_time()
            return _dumps({"reader": kind, "unreadable": str(error)})
        except (ValueError, TypeError, RecursionError) as error:  # such as a number of more digits than Python writes
            return _dumps({"reader": kind, "unreadable": f"its value is no JSON: {error}"})
        except (TooLarge, MemoryError) as error:
            self._tree.check_time()
            return _dumps({"reader": kind, "cut": str(error) or "too large for the memory of the digest helper"})


def load_reader(kind: str) -> Any:
    """Module of a reader, imported only when needed: all of them would add to every start of the helper."""
    return importlib.import_module(f"gymcp.mcp_servers.programs.digest.readers.{READERS[kind]}")


def _value(reader: Any, source: Source) -> Json:
    """Return the value that the reader finds. Raises Unreadable, also if it fails, and TooLarge; nothing else."""
    try:
        return reader.read(source)
    except (Unreadable, TooLarge, MemoryError):
        raise
    except Exception as error:
        raise Unreadable(f"its reader failed with {type(error).__name__}") from None


def _suffixes(kind: str) -> tuple[str, ...]:
    return getattr(load_reader(kind), "SUFFIXES", ())


def _is_file(entries: Entries, path: str) -> bool:
    return path in entries and entries[path].kind == "file"


def _dumps(value: Json) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
