"""Later verdicts in the database: one row each, the newest counts, the trajectory stays as recorded."""

from __future__ import annotations

import sqlite3

from gymcp.errors import StoreError
from gymcp.store.codec import decode_text, encode_text
from gymcp.store.record_json import dumps
from gymcp.store.rows import Grade, parse_components, parse_score
from gymcp.store.validation import require_text
from gymcp.types import Outcome


def insert_grade(db: sqlite3.Connection, where: str, grade: Grade) -> None:
    """Add the newest grade. Raises StoreError if its trajectory is missing or has nothing to grade."""
    row = db.execute("SELECT seq, outcome FROM trajectories WHERE id = ?", (encode_text(grade.trajectory),)).fetchone()
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
            encode_text(dumps(grade.components)),
            encode_text(grade.reason),
            grade.graded_at,
            encode_text(grade.grader),
        ),
    )


def read_grades(db: sqlite3.Connection, id: str) -> tuple[Grade, ...]:
    """The grades of a trajectory, newest last. Raises TypeError or ValueError for rows that gymcp has not written."""
    rows = db.execute(
        "SELECT g.outcome, g.score, g.components, g.reason, g.graded_at, g.grader FROM grades g"
        " JOIN trajectories t ON t.seq = g.trajectory WHERE t.id = ? ORDER BY g.seq",
        (encode_text(id),),
    ).fetchall()
    return tuple(
        Grade(
            trajectory=id,
            outcome=Outcome(row[0]),
            score=parse_score(row[1]),
            components=parse_components(row[2]),
            reason=decode_text(row[3]),
            graded_at=require_text(row[4], "graded_at"),
            grader=decode_text(row[5]),
        )
        for row in rows
    )
