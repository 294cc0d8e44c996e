"""What presets gave to steps, in the database: of a trajectory and a preset the newest."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable

from gymcp.errors import StoreError
from gymcp.store.checked import text_of
from gymcp.store.codec import dumps, pack_floats, text, unpack_floats, untext
from gymcp.store.rows import StepCredit


def replace_credits(db: sqlite3.Connection, where: str, credits: Iterable[StepCredit], *, now: str) -> None:
    """Puts each in the place of what its preset gave before, as assigned at `now`.

    Raises StoreError where a trajectory is missing or has another number of steps.
    """
    for credit in credits:
        row = db.execute("SELECT seq, steps FROM trajectories WHERE id = ?", (text(credit.trajectory),)).fetchone()
        lengths = {len(credit.rewards), len(credit.returns), len(credit.advantages)}
        if row is None or lengths != {row[1]}:
            why = "is not there" if row is None else f"has {row[1]} steps, not {sorted(lengths)}"
            raise StoreError(f"{where}: credit for trajectory {credit.trajectory!r}, which {why}")
        columns = (pack_floats(each) for each in (credit.rewards, credit.returns, credit.advantages))
        db.execute(
            "INSERT OR REPLACE INTO credits VALUES (?, ?, ?, ?, ?, ?, ?)",
            (row[0], text(credit.preset), text(dumps(credit.options)), now, *columns),
        )


def read_credits(db: sqlite3.Connection, id: str) -> tuple[StepCredit, ...]:
    """Those of a trajectory, newest first. Raises TypeError or ValueError for what gymcp has not written."""
    if not db.execute("SELECT 1 FROM sqlite_master WHERE name = 'credits'").fetchone():
        return ()  # written before there were credits
    rows = db.execute(
        "SELECT c.preset, c.options, c.assigned_at, c.rewards, c.returns, c.advantages FROM credits c"
        " JOIN trajectories t ON t.seq = c.trajectory WHERE t.id = ? ORDER BY c.assigned_at DESC, c.preset",
        (text(id),),
    ).fetchall()
    return tuple(
        StepCredit(
            trajectory=id,
            preset=untext(row[0]),
            options=json.loads(untext(row[1])),
            assigned_at=text_of(row[2], "assigned_at"),
            rewards=unpack_floats(row[3]),
            returns=unpack_floats(row[4]),
            advantages=unpack_floats(row[5]),
        )
        for row in rows
    )
