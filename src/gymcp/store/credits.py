"""Credit of steps in the database: the newest of each trajectory and preset."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable

from gymcp.errors import StoreError
from gymcp.store.codec import decode_text, encode_text, pack_floats, unpack_floats
from gymcp.store.record_json import dumps
from gymcp.store.rows import StepCredit
from gymcp.store.validation import require_text
from gymcp.types import Json


def replace_credits(db: sqlite3.Connection, where: str, credits: Iterable[StepCredit], *, now: str) -> None:
    """Store each credit, assigned at `now`, in place of the earlier credit of the same preset.

    Raises StoreError if a trajectory is missing or has another number of steps.
    """
    for credit in credits:
        row = db.execute(
            "SELECT seq, steps FROM trajectories WHERE id = ?", (encode_text(credit.trajectory),)
        ).fetchone()
        lengths = {len(credit.rewards), len(credit.returns), len(credit.advantages)}
        if row is None or lengths != {row[1]}:
            why = "is not there" if row is None else f"has {row[1]} steps, not {sorted(lengths)}"
            raise StoreError(f"{where}: credit for trajectory {credit.trajectory!r}, which {why}")
        columns = (pack_floats(each) for each in (credit.rewards, credit.returns, credit.advantages))
        db.execute(
            "INSERT OR REPLACE INTO credits VALUES (?, ?, ?, ?, ?, ?, ?)",
            (row[0], encode_text(credit.preset), encode_text(dumps(credit.options)), now, *columns),
        )


def read_credits(db: sqlite3.Connection, id: str) -> tuple[StepCredit, ...]:
    """The credits of a trajectory, newest first. Raises TypeError or ValueError for rows that gymcp has not written."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'credits'").fetchone():
        return ()  # the file is older than credits
    rows = db.execute(
        "SELECT c.preset, c.options, c.assigned_at, c.rewards, c.returns, c.advantages FROM credits c"
        " JOIN trajectories t ON t.seq = c.trajectory WHERE t.id = ? ORDER BY c.assigned_at DESC, c.preset",
        (encode_text(id),),
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
