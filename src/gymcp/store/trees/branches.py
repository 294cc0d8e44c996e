"""Episodes that branched off another one, in the database: each holds its own steps only.

They have tables of their own, so that all figures of a run count the first episodes of trees. The tables are made with
the first branch. From then on the file has `FORMAT_WITH_BRANCHES`, which earlier versions refuse in plain words.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from gymcp.errors import StoreError
from gymcp.store.codec import decode_text, encode_text
from gymcp.store.database import FORMAT_WITH_BRANCHES
from gymcp.store.rows import RECORDED_COLUMNS, EpisodeRow, episode_row
from gymcp.store.trees.episodes import Encoded, insert_steps
from gymcp.store.trees.tables import BRANCH_TABLES, has_table
from gymcp.store.validation import require_integer
from gymcp.types import Json, Sampled, Step, Trajectory

_LATEST = "b.attempt = (SELECT max(t.attempt) FROM trajectories t WHERE t.task = b.task AND t.trial = b.trial)"
_GRADED = ("outcome", "score", "components", "reason")
_ROW_COLUMNS = ", ".join(
    (
        f'b.id, b.env, b.task, b.trial, b.attempt, {_LATEST}, b.seed, b."group", b.parent',
        *(f"CASE WHEN g.seq IS NULL THEN b.{name} ELSE g.{name} END" for name in _GRADED),
        "b.steps, b.usage, b.tags, g.grader, b.seq",
    )
)
"""The columns that `episode_row` takes, with those of the newest grade."""
_NEWEST_GRADES = "branch_grades g ON g.seq = (SELECT max(seq) FROM branch_grades h WHERE h.trajectory = b.seq)"
_NO_GRADES = (
    "(SELECT NULL AS seq, NULL AS outcome, NULL AS score, NULL AS components, NULL AS reason, NULL AS grader) g ON 0"
)
MAX_PIECES = 10_000
"""Most branchings on the path of an episode that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRecord:
    """An episode of a tree that went on from a step of another one, to be recorded with the tree."""

    trajectory: Trajectory
    """The episode with all steps of its path; its `parent` is the id of the episode that it branched off."""
    branch: str
    """Place in the tree: ``2.1`` is the first new way after step 2 of the first episode, ``2.1/3.2`` the second new one
    after step 3 of that."""
    shared: int
    """Number of steps that it shares with its parent."""
    states: Mapping[str, Json] = field(default_factory=dict)
    """States that the trajectory refers to, by content address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchRow:
    """A branch without its steps, as `TrajectoryStore.branches` lists it with its newest grade."""

    episode: EpisodeRow
    """The episode; its `steps` are those that are its own. Its usage is that of these steps."""
    branch: str
    """As in `BranchRecord`."""
    shared: int
    """Number of steps that it shares with its parent."""


def find_last_sample(steps: Sequence[Step]) -> Sampled | None:
    """Tokens of the last step that has any; None if none has."""
    return next((step.sampled for step in reversed(steps) if step.sampled is not None), None)


def insert_branches(
    db: sqlite3.Connection, where: str, attempt: int, branches: Iterable[tuple[BranchRecord, Encoded]]
) -> None:
    """Record branches of the tree whose first episode has just been recorded as this attempt, parents first.

    Raises StoreError for a branch whose parent is not recorded or has fewer steps, and for one that is there already.
    """
    for record, (head, rows, contents) in branches:
        _make_tables(db)
        _check(db, where, record, attempt)
        cursor = db.execute(
            'INSERT INTO branches (attempt, id, env, task, trial, seed, "group", parent, outcome, score, components,'
            " reason, steps, usage, tags, rest, branch, shared) VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)",
            (attempt, *head, encode_text(record.branch), record.shared),
        )
        insert_steps(db, "branch_steps", cursor.lastrowid, rows, contents)


def _make_tables(db: sqlite3.Connection) -> None:
    if not has_table(db, "branches"):
        for statement in BRANCH_TABLES[:2]:
            db.execute(statement)
        db.execute(f"PRAGMA user_version = {FORMAT_WITH_BRANCHES}")


def _check(db: sqlite3.Connection, where: str, record: BranchRecord, attempt: int) -> None:
    child, parent = record.trajectory, encode_text(record.trajectory.parent or "")
    who = f"{where}: branch {record.branch!r} of task {child.task!r} trial {child.trial}"
    row = db.execute("SELECT steps FROM trajectories WHERE id = ?", (parent,)).fetchone()
    if row is None:
        row = db.execute("SELECT shared + steps FROM branches WHERE id = ?", (parent,)).fetchone()
    if row is None:
        raise StoreError(f"{who}: its parent {child.parent!r} is not recorded")
    if not 0 <= record.shared <= min(row[0], len(child.steps)):
        raise StoreError(f"{who}: shares {record.shared} steps with a parent of {row[0]} steps")
    taken = db.execute(
        "SELECT 1 FROM branches WHERE id = ? OR (task = ? AND trial = ? AND branch = ? AND attempt = ?)",
        (encode_text(child.id), encode_text(child.task), child.trial, encode_text(record.branch), attempt),
    ).fetchone()
    if taken:
        raise StoreError(f"{who}: is already recorded")


def read_branch_rows(
    db: sqlite3.Connection, *, latest: bool, tasks: Set[str] | None = None
) -> Iterator[tuple[Any, ...]]:
    """Columns for `make_branch_row` of each branch, its number in the order of recording last.

    `tasks`: only those of these tasks.
    """
    if not has_table(db, "branches"):
        return
    names = [encode_text(task) for task in tasks or ()]
    only = f"WHERE {_LATEST if latest else 'TRUE'}"
    only += "" if tasks is None else f" AND b.task IN ({', '.join('?' * len(names))})"
    grades = _NEWEST_GRADES if has_table(db, "branch_grades") else _NO_GRADES
    yield from db.execute(
        f"SELECT b.branch, b.shared, {_ROW_COLUMNS} FROM branches b LEFT JOIN {grades} {only} ORDER BY b.seq", names
    )


def count_branch_grades(db: sqlite3.Connection) -> int:
    """Number of later grades of branches."""
    if not has_table(db, "branch_grades"):
        return 0
    count: int = db.execute("SELECT coalesce((SELECT max(seq) FROM branch_grades), 0)").fetchone()[0]
    return count


def make_branch_row(columns: Sequence[Any]) -> BranchRow:
    """The branch of these columns. Raises TypeError or ValueError for a row that gymcp has not written."""
    shared = require_integer(columns[1], "the number of shared steps")
    return BranchRow(branch=decode_text(columns[0]), shared=shared, episode=episode_row(columns[2:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """An episode on the way from the first one of a tree to one of its branches."""

    row: tuple[Any, ...]
    """`RECORDED_COLUMNS` and the rest."""
    shared: int
    """Number of steps before its own."""


def find_pieces(db: sqlite3.Connection, id: str) -> tuple[str | bytes, list[Piece]]:
    """Id of the first episode of the tree, and the branches from there down to `id`; none if `id` is no branch.

    Raises ValueError for branches that gymcp has not written.
    """
    parent, pieces = encode_text(id), list[Piece]()
    if not has_table(db, "branches"):
        return parent, pieces
    before: int | None = None
    while True:
        row = db.execute(
            f"SELECT shared, parent, seq, {RECORDED_COLUMNS}, rest FROM branches WHERE id = ?", (parent,)
        ).fetchone()
        if row is None:
            return parent, pieces[::-1]
        shared = require_integer(row[0], "the number of shared steps")
        number = require_integer(row[2], "the number of a branch")
        if shared < 0 or (before is not None and number >= before) or len(pieces) >= MAX_PIECES:
            raise ValueError("its branches do not come after those that they branch off")
        pieces.append(Piece(row=row[3:], shared=shared))
        parent, before = row[1], number


def join_path(path: Trajectory, own: Trajectory, shared: int) -> Trajectory:
    """The episode `own` with the first `shared` steps of `path` in front. Raises ValueError if there are fewer."""
    if shared > len(path.steps):
        raise ValueError(f"it shares {shared} steps with an episode of {len(path.steps)}")
    # the reward of an episode is on its last step, which need not be the last of another one
    before = tuple(replace(step, reward=0.0) if step.reward else step for step in path.steps[:shared])
    return replace(own, steps=(*before, *own.steps))
