"""Import documents as a run: ATIF, and the JSON lines that `export` writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.exchange.from_atif import from_atif
from gymcp.exchange.json_lines import from_line
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Json, Trajectory

EPISODES_AT_A_TIME = 32
MAX_DOCUMENT_BYTES = 1_000_000_000

Tagged = tuple[Trajectory, tuple[str, ...]]


def import_run(path: Path, out: Path) -> int:
    """Write the episodes of `path` into the new run folder `out`, and return their number.

    `path`: an ATIF document, lines of ATIF documents or of exported episodes, or a folder of such files. Raises
    ConfigError if a file is none of these, StoreError if `out` already holds a run or cannot be written. Episodes that
    were imported before the error stay in `out`.
    """
    episodes = _make_unique(_read(path))
    first = next(episodes, None)  # fails before a folder is made if the document is malformed
    if first is None:
        raise ConfigError(f"import {path}: holds no episode")
    config: dict[str, Json] = {"env": first[0].env, "suite": "imported", "agent": "imported", "imported": path.name}
    count = 0
    with create_run(out, config), TrajectoryStore.open(out, write=True) as store:
        batch: list[Tagged] = [first]
        while batch:
            store.append_many((trajectory, {}, tags) for trajectory, tags in batch)
            count += len(batch)
            batch = list(islice(episodes, EPISODES_AT_A_TIME))
    return count


def _read(path: Path) -> Iterator[Tagged]:
    if not path.is_dir():
        yield from _read_file(path)
        return
    files = sorted(each for each in path.iterdir() if each.suffix in (".json", ".jsonl"))
    if not files:
        raise ConfigError(f"import {path}: a folder without a .json or .jsonl file")
    for file in files:
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[Tagged]:
    try:
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


def _parse(text: str, where: str) -> Tagged:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{where}: is not a JSON object")
    return from_line(document, where) if "format" in document else from_atif(document, where)


def _make_unique(episodes: Iterator[Tagged]) -> Iterator[Tagged]:
    """The episodes with unique ids. Documents of other programs may lack ids; those of one task are its trials."""
    trials: Counter[str] = Counter()
    ids: Counter[str] = Counter()
    for number, (trajectory, tags) in enumerate(episodes, 1):
        named = trajectory
        if "atif" in trajectory.provenance:
            task = trajectory.task or f"episode-{number}"
            named = replace(trajectory, task=task, trial=trials[task])
            trials[task] += 1
        id = named.id or f"imported-{number}"
        ids[id] += 1
        yield (named if ids[id] == 1 and named.id else replace(named, id=f"{id}#{ids[id]}")), tags
