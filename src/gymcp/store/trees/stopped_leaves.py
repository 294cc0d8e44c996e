"""Leaves of a tree that tell nothing about success: episodes that a search stopped before they had come to an end.

A search pauses episodes to go on from the best of them. The agent could have gone on, so their scores, which are those
of the world as it stood, are no results of its steps. (An episode that `dfsdt` left because a call had failed is
another matter: the failed call is its end, and its score is that call's.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from gymcp.outcome import Outcome
from gymcp.store.codec import decode_text, unpack
from gymcp.store.trees.tables import Owner, has_table
from gymcp.types import Json

SEARCH_KEY = "search"
"""Key in `Trajectory.provenance` of what a search notes on each of its episodes; its ``end`` is the reason of the
end."""
PAUSED = "paused"
"""The ``end`` of an episode that the search stopped to go on from it, or from others."""
_MAY_BE_STOPPED = (Outcome.BUDGET_EXHAUSTED, Outcome.GRADER_ERROR)
"""Recorded outcomes of such an episode."""


def is_stopped_by_search(provenance: Mapping[str, Json]) -> bool:
    """True for the provenance of an episode that a search stopped. The record may be of others."""
    note = provenance.get(SEARCH_KEY)
    return isinstance(note, Mapping) and note.get("end") == PAUSED


def read_stopped_leaves(db: sqlite3.Connection) -> Iterator[str]:
    """Ids of the episodes that a search stopped, chosen ones too; none in a file without branches.

    Raises ValueError or TypeError for rows that gymcp has not written.
    """
    if not has_table(db, "branches"):
        return
    outcomes = ", ".join(f"'{outcome}'" for outcome in _MAY_BE_STOPPED)
    for table in ("trajectories", "branches"):
        for id, rest in db.execute(f"SELECT id, rest FROM {table} WHERE outcome IN ({outcomes})"):
            if _says_stopped(rest):
                yield decode_text(id)


def is_stopped_leaf(db: sqlite3.Connection, owner: Owner) -> bool:
    """True if a search stopped this episode. Raises ValueError or TypeError for a row that gymcp has not written."""
    table = "trajectories" if owner.credits == "credits" else "branches"
    return _says_stopped(db.execute(f"SELECT rest FROM {table} WHERE seq = ?", (owner.seq,)).fetchone()[0])


def _says_stopped(rest: bytes) -> bool:
    found = unpack(rest)
    provenance = found.get("provenance") if isinstance(found, dict) else None
    if not isinstance(provenance, Mapping):
        raise ValueError("an episode has no provenance")
    return is_stopped_by_search(provenance)
