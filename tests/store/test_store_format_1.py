"""A run folder of format 1, with a row for every step, is read and continued."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from records import episode, step

from gymcp.store import TrajectoryStore
from gymcp.store.codec import unpack
from gymcp.store.database import FILE_NAME
from gymcp.types import Sampled

FIRST = Sampled(prompt_ids=(1, 2), ids=(3, 70_000), logprobs=(-0.1, -0.5), versions=(("v0", 0, 2),))
SECOND = Sampled(
    prompt_ids=(1, 2, 3, 70_000, 4), ids=(5,), logprobs=(-0.25,), versions=(("v1", 0, 1),), finish="length"
)
OLD = replace(
    episode("old"),
    steps=(replace(step(0), sampled=FIRST), step(1), replace(step(2), sampled=SECOND)),
)


def make_old(folder: Path) -> None:
    """Write `OLD` in the first format, as its code wrote it."""
    with TrajectoryStore.open(folder, write=True) as store:
        store.append(OLD, {})
    with closing(sqlite3.connect(folder / FILE_NAME)) as connection, connection:
        ((payload,),) = connection.execute("SELECT payload FROM steps")
        steps = unpack(payload)["steps"]
        connection.execute("DELETE FROM steps")
        for n, (fields, sampled, shared) in enumerate(zip(steps, (FIRST, None, SECOND), (0, 0, 4), strict=True)):
            columns: tuple[bytes | None, ...] = (None, None, None)
            if sampled is not None:
                new = sampled.prompt_ids[shared:]
                fields["sampled"] = {
                    "shared": shared,
                    "dtype": "<i4",
                    "versions": sampled.versions,
                    "finish": sampled.finish,
                }
                columns = (
                    struct.pack(f"<{len(new)}i", *new),
                    struct.pack(f"<{len(sampled.ids)}i", *sampled.ids),
                    struct.pack(f"<{len(sampled.logprobs)}d", *sampled.logprobs),
                )
            connection.execute(
                "INSERT INTO steps VALUES (1, ?, ?, ?, ?, ?)", (n, json.dumps(fields).encode(), *columns)
            )
        connection.execute("PRAGMA user_version = 1")


def test_a_run_of_format_1_is_read_and_continued(tmp_path: Path) -> None:
    make_old(tmp_path)
    with TrajectoryStore.open(tmp_path) as store:
        assert store.load("old-0-0") == OLD
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    with TrajectoryStore.open(tmp_path, write=True) as store:
        store.append(replace(OLD, id="new", task="new"), {})
        assert [replace(each, id="", task="") for each in store.iter_trajectories()] == [
            replace(OLD, id="", task="")
        ] * 2
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (2,)
