"""Documents of others as a run: ATIF, and the JSON lines that `export` writes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.exchange.from_atif import from_atif
from gymcp.exchange.lines import from_line
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Json, Trajectory

EPISODES_AT_A_TIME = 32
MAX_DOCUMENT_BYTES = 1_000_000_000

Found = tuple[Trajectory, tuple[str, ...]]


def import_run(path: Path, out: Path) -> int:
    """A run folder of what `path` holds: one ATIF document, lines of them or of ours, or a folder of such files.

    Gives the number of episodes. Raises ConfigError where a file is none of these, StoreError where `out` holds a run
    already, or cannot be written. Whatever was imported before the fault stays in `out`.
    """
    episodes = _named_apart(_read(path))
    first = next(episodes, None)  # says what is wrong with it before a folder is made
    if first is None:
        raise ConfigError(f"import {path}: holds no episode")
    config: dict[str, Json] = {"env": first[0].env, "suite": "imported", "agent": "imported", "imported": path.name}
    count = 0
    with create_run(out, config), TrajectoryStore.open(out, write=True) as store:
        batch: list[Found] = [first]
        while batch:
            store.append_many((trajectory, {}, tags) for trajectory, tags in batch)
            count += len(batch)
            batch = list(islice(episodes, EPISODES_AT_A_TIME))
    return count


def _read(path: Path) -> Iterator[Found]:
    if not path.is_dir():
        yield from _file(path)
        return
    files = sorted(each for each in path.iterdir() if each.suffix in (".json", ".jsonl"))
    if not files:
        raise ConfigError(f"import {path}: a folder without a .json or .jsonl file")
    for file in files:
        yield from _file(file)


def _file(file: Path) -> Iterator[Found]:
    try:
        with file.open(encoding="utf-8") as lines:
            if file.suffix == ".jsonl":
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield _parsed(line, f"import {file}, line {number}")
            elif file.stat().st_size > MAX_DOCUMENT_BYTES:
                raise ConfigError(f"import {file}: is longer than {MAX_DOCUMENT_BYTES} bytes")
            else:
                yield _parsed(lines.read(), f"import {file}")
    except OSError as error:
        raise ConfigError(f"import {file}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"import {file}: is not UTF-8 text: {error}") from error


def _parsed(text: str, where: str) -> Found:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{where}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{where}: is not a JSON object")
    return from_line(found, where) if "format" in found else from_atif(found, where)


def _named_apart(episodes: Iterator[Found]) -> Iterator[Found]:
    """Documents of others may lack ids, and may share a task: then they are its trials."""
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
