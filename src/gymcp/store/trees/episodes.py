"""Rows of an episode: a (task, trial) is recorded once, and again only after an attempt that says nothing."""

from __future__ import annotations

import sqlite3
from typing import Any

from gymcp.errors import StoreError
from gymcp.outcome import Outcome
from gymcp.store.codec import STEPS_PER_ROW, StepRow, encode_text
from gymcp.types import Trajectory

Encoded = tuple[tuple[Any, ...], list[StepRow], list[tuple[str | bytes, bytes]]]
"""Columns, step rows and blobs of an episode."""


def insert_episode(db: sqlite3.Connection, where: str, trajectory: Trajectory, encoded: Encoded) -> int:
    """Record the first episode of a tree, or one without a tree; return the number of its attempt, from 0.

    Raises StoreError if an earlier attempt counts, and for an id that is taken.
    """
    head, rows, contents = encoded
    attempt = _count_attempts(db, where, trajectory)
    cursor = db.execute(
        'INSERT INTO trajectories (attempt, id, env, task, trial, seed, "group", parent, outcome, score,'
        " components, reason, steps, usage, tags, rest) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
        (attempt, *head),
    )
    insert_steps(db, "steps", cursor.lastrowid, rows, contents)
    return attempt


def insert_steps(
    db: sqlite3.Connection,
    table: str,
    episode: int | None,
    rows: list[StepRow],
    contents: list[tuple[str | bytes, bytes]],
) -> None:
    """Record the steps of an episode, whose number is given, and the blobs that are not there yet."""
    db.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?)", contents)
    db.executemany(
        f"INSERT INTO {table} VALUES (?, ?, ?, ?, ?, ?)",
        (
            (episode, n * STEPS_PER_ROW, row.payload, row.prompt_ids, row.ids, row.logprobs)
            for n, row in enumerate(rows)
        ),
    )


def _count_attempts(db: sqlite3.Connection, where: str, trajectory: Trajectory) -> int:
    """Number of earlier attempts."""
    if db.execute("SELECT 1 FROM trajectories WHERE id = ?", (encode_text(trajectory.id),)).fetchone():
        raise StoreError(f"{where}: trajectory {trajectory.id!r} is already recorded")
    last = db.execute(
        "SELECT attempt, outcome FROM episodes WHERE task = ? AND trial = ? ORDER BY attempt DESC LIMIT 1",
        (encode_text(trajectory.task), trajectory.trial),
    ).fetchone()
    if last is None:
        return 0
    attempt, outcome = int(last[0]), Outcome(last[1])
    if not outcome.runs_again:
        raise StoreError(
            f"{where}: task {trajectory.task!r} trial {trajectory.trial} is already recorded as {outcome};"
            " another attempt is kept only after one that ended in infrastructure or was cancelled"
        )
    return attempt + 1
