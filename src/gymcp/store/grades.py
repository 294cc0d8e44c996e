"""Later verdicts in the database: one row each, the newest counts, the trajectory stays as recorded."""

from __future__ import annotations

import sqlite3

from gymcp.errors import StoreError
from gymcp.outcome import Outcome
from gymcp.store.codec import decode_text, encode_text
from gymcp.store.record_json import dumps
from gymcp.store.rows import Grade, parse_components, parse_score, with_grade
from gymcp.store.trees.tables import find_owner, has_table, make_missing
from gymcp.store.validation import require_text
from gymcp.types import Trajectory


def insert_grade(db: sqlite3.Connection, where: str, grade: Grade) -> None:
    """Add the newest grade. Raises StoreError if its trajectory is missing or has nothing to grade."""
    require_score(where, grade.trajectory, grade.score)
    owner = find_owner(db, encode_text(grade.trajectory))
    if owner is None:
        raise StoreError(f"{where}: no trajectory {grade.trajectory!r} to grade")
    if Outcome(owner.outcome).runs_again:
        raise StoreError(f"{where}: {grade.trajectory!r} ended in {owner.outcome}: nothing to grade, run it again")
    if owner.grades != "grades":
        make_missing(db)
    db.execute(
        f"INSERT INTO {owner.grades} (trajectory, outcome, score, components, reason, graded_at, grader)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            owner.seq,
            str(grade.outcome),
            grade.score,
            encode_text(dumps(grade.components)),
            encode_text(grade.reason),
            grade.graded_at,
            encode_text(grade.grader),
        ),
    )


def require_score(where: str, id: str, score: float | None) -> None:
    """Raise StoreError for a number that is no score of a trajectory."""
    # sqlite would keep NaN as NULL, and a broken grader would look like "no score"
    if score is not None and not 0 <= score <= 1:
        raise StoreError(f"{where}: trajectory {id!r} has the score {score}")


def read_grades(db: sqlite3.Connection, id: str) -> tuple[Grade, ...]:
    """The grades of a trajectory, newest last. Raises TypeError or ValueError for rows that gymcp has not written."""
    owner = find_owner(db, encode_text(id))
    if owner is None or not has_table(db, owner.grades):
        return ()
    rows = db.execute(
        f"SELECT outcome, score, components, reason, graded_at, grader FROM {owner.grades} WHERE trajectory = ?"
        " ORDER BY seq",
        (owner.seq,),
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


def apply_newest_grade(db: sqlite3.Connection, trajectory: Trajectory) -> Trajectory:
    """The trajectory as its newest grade sees it, or as it is if it was never graded again."""
    grades = read_grades(db, trajectory.id)
    return with_grade(trajectory, grades[-1]) if grades else trajectory
