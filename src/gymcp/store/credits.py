"""Credit of steps in the database: the newest of each trajectory and preset."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial

from gymcp.errors import StoreError
from gymcp.outcome import Outcome
from gymcp.store.codec import decode_text, encode_text, pack_floats, unpack_floats
from gymcp.store.grades import read_grades
from gymcp.store.record_json import dumps
from gymcp.store.rows import StepCredit
from gymcp.store.trees.stopped_leaves import is_stopped_leaf
from gymcp.store.trees.tables import Owner, find_owner, has_table, make_missing
from gymcp.store.validation import require_text
from gymcp.types import Json


def replace_credits(
    db: sqlite3.Connection, where: str, credits: Iterable[StepCredit], *, forget: str | None = None
) -> None:
    """Store each credit, assigned now, in place of the earlier credit of the same preset.

    `forget`: preset whose earlier credit of every episode goes, also of those that get none now.

    Of a branch, it is the credit of its own steps. Of an episode without a score, or one that a search stopped, which
    others went on from, it may be that of its first steps.
    Raises StoreError if a trajectory is missing or has another number of steps.
    """
    now = datetime.now(UTC).isoformat(timespec="seconds")
    if forget is not None:
        for table in filter(partial(has_table, db), ("credits", "branch_credits")):
            db.execute(f"DELETE FROM {table} WHERE preset = ?", (encode_text(forget),))
    for credit in credits:
        owner = find_owner(db, encode_text(credit.trajectory))
        lengths = {len(credit.rewards), len(credit.returns), len(credit.advantages)}
        if owner is None or (lengths != {owner.steps} and not _fits_beginning(db, credit.trajectory, owner, lengths)):
            why = "is not there" if owner is None else f"has {owner.steps} steps, not {sorted(lengths)}"
            raise StoreError(f"{where}: credit for trajectory {credit.trajectory!r}, which {why}")
        if owner.credits != "credits":
            make_missing(db)
        columns = (pack_floats(each) for each in (credit.rewards, credit.returns, credit.advantages))
        db.execute(
            f"INSERT OR REPLACE INTO {owner.credits} VALUES (?, ?, ?, ?, ?, ?, ?)",
            (owner.seq, encode_text(credit.preset), encode_text(dumps(credit.options)), now, *columns),
        )


def _fits_beginning(db: sqlite3.Connection, id: str, owner: Owner, lengths: set[int]) -> bool:
    """True if the credit is that of the first steps of an episode whose score counts nowhere."""
    grades = read_grades(db, id)
    outcome = grades[-1].outcome if grades else Outcome(owner.outcome)
    is_beginning = len(lengths) == 1 and max(lengths) < owner.steps
    return is_beginning and (not outcome.has_score or is_stopped_leaf(db, owner))


def read_credits(db: sqlite3.Connection, id: str) -> tuple[StepCredit, ...]:
    """The credits of a trajectory, newest first. Raises TypeError or ValueError for rows that gymcp has not written."""
    owner = find_owner(db, encode_text(id))
    if owner is None or not has_table(db, owner.credits):
        return ()  # the file is older than credits, or its branches have none
    rows = db.execute(
        f"SELECT preset, options, assigned_at, rewards, returns, advantages FROM {owner.credits} WHERE trajectory = ?"
        " ORDER BY assigned_at DESC, preset",
        (owner.seq,),
    ).fetchall()
    return tuple(
        StepCredit(
            trajectory=id,
            preset=decode_text(row[0]),
            options=_parse_options(decode_text(row[1])),
            assigned_at=require_text(row[2], "assigned_at"),
            rewards=unpack_floats(row[3]),
            returns=unpack_floats(row[4]),
            advantages=unpack_floats(row[5]),
        )
        for row in rows
    )


def _parse_options(text: str) -> dict[str, Json]:
    options = json.loads(text)
    if not isinstance(options, dict):
        raise TypeError("options is not an object")
    return options
