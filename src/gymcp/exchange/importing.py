"""Import documents as a run: ATIF, the JSON lines that `export` writes, and its Parquet."""

from __future__ import annotations

import importlib
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.exchange.atif import ATIF_BRANCH_KEY
from gymcp.exchange.from_atif import from_atif
from gymcp.exchange.json_lines import MALFORMED, from_line
from gymcp.exchange.trees import BRANCH_KEY, Imported, ImportedTree, add_place, join_trees
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Json
from gymcp.visible_text import one_line

EPISODES_AT_A_TIME = 32
MAX_DOCUMENT_BYTES = 1_000_000_000
_SUFFIXES = (".json", ".jsonl", ".parquet")


def import_run(path: Path, out: Path) -> int:
    """Write the episodes of `path` into the new run folder `out`, and return their number, branches included.

    `path`: an ATIF document, lines of ATIF documents or of exported episodes, an exported Parquet file, or a folder of
    such files. Raises ConfigError if a file is none of these, StoreError if `out` already holds a run or cannot be
    written. Episodes that were imported before the error stay in `out`.
    """
    trees = join_trees(_make_unique(_read(path)), f"import {path}")
    tree = next(trees, None)  # fails before a folder is made if the document is malformed
    if tree is None:
        raise ConfigError(f"import {path}: holds no episode")
    first = tree.first.trajectory
    config: dict[str, Json] = {"env": first.env, "suite": "imported", "agent": "imported", "imported": path.name}
    count = 0
    with create_run(out, config), TrajectoryStore.open(out, write=True) as store:
        batch: list[Imported] = []
        while tree is not None:
            count += 1 + len(tree.branches)
            if tree.branches:
                batch = _append(store, batch, tree)
            else:
                batch.append(tree.first)
            if len(batch) >= EPISODES_AT_A_TIME:
                batch = _append(store, batch)
            tree = next(trees, None)
        _append(store, batch)
    return count


def _append(store: TrajectoryStore, batch: list[Imported], tree: ImportedTree | None = None) -> list[Imported]:
    """Record the episodes of the batch, then the tree; return an empty batch."""
    store.append_many((each.trajectory, {}, each.tags) for each in batch)
    if tree is not None:
        store.append(tree.first.trajectory, {}, tags=tree.first.tags, branches=tree.branches)
    return []


def _read(path: Path) -> Iterator[Imported]:
    if not path.is_dir():
        yield from _read_file(path)
        return
    files = sorted(each for each in path.iterdir() if each.suffix in _SUFFIXES)
    if not files:
        raise ConfigError(f"import {path}: a folder without a .json, .jsonl or .parquet file")
    for file in files:
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[Imported]:
    try:
        if file.suffix == ".parquet":
            yield from _load_parquet_reader()(file)
            return
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".jsonl":
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _parse(line, f"import {file}, line {number}")
            elif file.stat().st_size > MAX_DOCUMENT_BYTES:
                raise ConfigError(f"import {file}: is longer than {MAX_DOCUMENT_BYTES} bytes")
            else:
                yield _parse(lines.read(), f"import {file}")
    except OSError as error:
        raise ConfigError(f"import {file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"import {file}: is not UTF-8 text: {error}") from error


def _load_parquet_reader() -> Callable[[Path], Iterator[Imported]]:
    """The reader of Parquet, imported on demand because pyarrow is an extra."""
    try:
        read: Callable[[Path], Iterator[Imported]] = importlib.import_module("gymcp.exchange.from_parquet").read_parquet
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"import: parquet needs '{error.name}', which is not installed: pip install 'gymcp[export]'"
        ) from error
    return read


def _parse(text: str, where: str) -> Imported:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: is not a JSON object")
    if "format" in document:
        (trajectory, tags), place = from_line(document, where), document.get(BRANCH_KEY)
    else:
        (trajectory, tags), extra = from_atif(document, where), document.get("extra")
        place = extra.get(ATIF_BRANCH_KEY) if isinstance(extra, dict) else None
    try:
        return add_place(trajectory, tags, place)
    except MALFORMED as error:
        raise ConfigError(f"{where}: is no branch of a tree: {type(error).__name__}: {one_line(str(error))}") from error


def _make_unique(episodes: Iterator[Imported]) -> Iterator[Imported]:
    """The episodes with unique ids. Documents of other programs may lack ids; those of one task are its trials."""
    trials: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    newest: dict[str, str] = {}
    for number, each in enumerate(episodes, 1):
        named = each.trajectory
        if "atif" in named.provenance:
            task = named.task or f"episode-{number}"
            named = replace(named, task=task, trial=trials[task])
            trials[task] += 1
        id = named.id or f"imported-{number}"
        ids[id] += 1
        unique = id if ids[id] == 1 else f"{id}#{ids[id]}"
        if not each.branch:
            newest = {}  # parents are in the same tree
        newest[id] = unique
        parent = newest.get(named.parent or "", named.parent) if each.branch else named.parent
        yield replace(each, trajectory=replace(named, id=unique, parent=parent))
