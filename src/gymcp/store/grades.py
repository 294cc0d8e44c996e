"""Later verdicts in the database: one row each, the newest counts, the trajectory stays as recorded."""

from __future__ import annotations

import sqlite3

from gymcp.errors import StoreError
from gymcp.store.checked import text_of
from gymcp.store.codec import dumps, text, untext
from gymcp.store.rows import Grade, components_of, score_of
from gymcp.types import Outcome


def insert_grade(db: sqlite3.Connection, where: str, grade: Grade) -> None:
    """Makes it the newest. Raises StoreError where its trajectory is missing or has nothing to grade."""
    row = db.execute("SELECT seq, outcome FROM trajectories WHERE id = ?", (text(grade.trajectory),)).fetchone()
    if row is None:
        raise StoreError(f"{where}: no trajectory {grade.trajectory!r} to grade")
    if Outcome(row[1]).runs_again:
        raise StoreError(f"{where}: {grade.trajectory!r} ended in {row[1]}: nothing to grade, run it again")
    db.execute(
        "INSERT INTO grades (trajectory, outcome, score, components, reason, graded_at, grader)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            row[0],
            str(grade.outcome),
            grade.score,
            text(dumps(grade.components)),
            text(grade.reason),
            grade.graded_at,
            text(grade.grader),
        ),
    )


def read_grades(db: sqlite3.Connection, id: str) -> tuple[Grade, ...]:
    """Those of a trajectory, newest last. Raises TypeError or ValueError for what gymcp has not written."""
    rows = db.execute(
        "SELECT g.outcome, g.score, g.components, g.reason, g.graded_at, g.grader FROM grades g"
        " JOIN trajectories t ON t.seq = g.trajectory WHERE t.id = ? ORDER BY g.seq",
        (text(id),),
    ).fetchall()
    return tuple(
        Grade(
            trajectory=id,
            outcome=Outcome(row[0]),
            score=score_of(row[1]),
            components=components_of(row[2]),
            reason=untext(row[3]),
            graded_at=text_of(row[4], "graded_at"),
            grader=untext(row[5]),
        )
        for row in rows
    )
