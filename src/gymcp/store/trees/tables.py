"""Tables of branches in the database, and the place of what is recorded of an episode later."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

BRANCH_TABLES = (
    """
CREATE TABLE branches (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    env TEXT NOT NULL,
    task TEXT NOT NULL,
    trial INTEGER NOT NULL,
    branch TEXT NOT NULL,
    attempt INTEGER NOT NULL,
    seed NOT NULL,
    "group" TEXT NOT NULL,
    parent TEXT NOT NULL,
    shared INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    score REAL,
    components TEXT NOT NULL,
    reason TEXT NOT NULL,
    steps INTEGER NOT NULL,
    usage TEXT NOT NULL,
    tags TEXT NOT NULL,
    rest BLOB NOT NULL,
    UNIQUE (task, trial, branch, attempt)
)
""",
    """
CREATE TABLE branch_steps (
    trajectory INTEGER NOT NULL REFERENCES branches (seq),
    step INTEGER NOT NULL,
    payload BLOB NOT NULL,
    prompt_ids BLOB,
    ids BLOB,
    logprobs BLOB,
    PRIMARY KEY (trajectory, step)
)
""",
    """
CREATE TABLE branch_grades (
    seq INTEGER PRIMARY KEY,
    trajectory INTEGER NOT NULL REFERENCES branches (seq),
    outcome TEXT NOT NULL,
    score REAL,
    components TEXT NOT NULL,
    reason TEXT NOT NULL,
    graded_at TEXT NOT NULL,
    grader TEXT NOT NULL
)
""",
    "CREATE INDEX branch_grades_by_trajectory ON branch_grades (trajectory)",
    """
CREATE TABLE branch_credits (
    trajectory INTEGER NOT NULL REFERENCES branches (seq),
    preset TEXT NOT NULL,
    options TEXT NOT NULL,
    assigned_at TEXT NOT NULL,
    rewards BLOB NOT NULL,
    returns BLOB NOT NULL,
    advantages BLOB NOT NULL,
    PRIMARY KEY (trajectory, preset)
)
""",
)
"""Tables of branches: the columns of other episodes with their place in a tree, their own steps, and their later grades
and credit. The first two are made with the first branch, the others when the first of them is recorded."""
OPTIONAL_TABLES = frozenset({"credits", "branches", "branch_steps", "branch_grades", "branch_credits"})
"""Tables that not every file has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """An episode's row, and the tables with what was recorded of it later."""

    seq: int
    outcome: str
    steps: int
    grades: str = "grades"
    credits: str = "credits"


def make_missing(db: sqlite3.Connection) -> None:
    """Make the tables of branches that the file lacks."""
    names = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
    for statement in BRANCH_TABLES:
        if statement.split()[2] not in names:
            db.execute(statement)


def has_table(db: sqlite3.Connection, name: str) -> bool:
    """True if the file has this table."""
    return db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (name,)).fetchone() is not None


def find_owner(db: sqlite3.Connection, id: str | bytes) -> Owner | None:
    """The episode of that id, which may be a branch; None if there is none."""
    row = db.execute("SELECT seq, outcome, steps FROM trajectories WHERE id = ?", (id,)).fetchone()
    if row is not None:
        return Owner(seq=row[0], outcome=row[1], steps=row[2])
    if not has_table(db, "branches"):
        return None
    row = db.execute("SELECT seq, outcome, steps FROM branches WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    return Owner(seq=row[0], outcome=row[1], steps=row[2], grades="branch_grades", credits="branch_credits")
