"""Leaves of a tree that tell nothing about success: episodes that a search stopped before they had come to an end.

A search pauses episodes to go on from the best of them. The agent could have gone on, so their scores, which are those
of the world as it stood, are no results of its steps. (An episode that `dfsdt` left because a call had failed is
another matter: the failed call is its end, and its score is that call's.)
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping

from gymcp.outcome import Outcome
from gymcp.store.codec import MAX_EPISODE_BYTES, ReadBudget, decode_text, unpack
from gymcp.store.trees.tables import Owner, has_table
from gymcp.types import Json

SEARCH_KEY = "search"
"""Key in `Trajectory.provenance` of what a search notes on each of its episodes; its ``end`` is the reason of the
end."""
PAUSED = "paused"
"""The ``end`` of an episode that the search stopped to go on from it, or from others."""
_MAY_BE_STOPPED = (Outcome.BUDGET_EXHAUSTED, Outcome.GRADER_ERROR)
"""Recorded outcomes of such an episode."""
BYTES_PER_FILE_BYTE = 16
"""Bytes that may be decompressed for each byte of the file, far more than the file of a run yields."""


def is_stopped_by_search(provenance: Mapping[str, Json]) -> bool:
    """True for the provenance of an episode that a search stopped. The record may be of others."""
    note = provenance.get(SEARCH_KEY)
    return isinstance(note, Mapping) and note.get("end") == PAUSED


def read_stopped_leaves(db: sqlite3.Connection, file_bytes: int) -> Iterator[str]:
    """Ids of the episodes that a search stopped, chosen ones too; none in a file without branches.

    `file_bytes`: size of the file, by which the bytes that are decompressed are limited. An episode that cannot be read
    counts as not stopped, as do those after the limit: `TrajectoryStore.load` says what is wrong with each. Raises
    ValueError or TypeError for an id that gymcp has not written.
    """
    if not has_table(db, "branches"):
        return
    outcomes = ", ".join(f"'{outcome}'" for outcome in _MAY_BE_STOPPED)
    budget = ReadBudget(MAX_EPISODE_BYTES + BYTES_PER_FILE_BYTE * file_bytes)
    for table in ("trajectories", "branches"):
        for id, rest in db.execute(f"SELECT id, rest FROM {table} WHERE outcome IN ({outcomes})"):
            if _says_stopped(rest, budget):
                yield decode_text(id)
            if budget.is_spent:
                return


def is_stopped_leaf(db: sqlite3.Connection, owner: Owner) -> bool:
    """True if a search stopped this episode; False for an episode that cannot be read."""
    table = "trajectories" if owner.credits == "credits" else "branches"
    rest = db.execute(f"SELECT rest FROM {table} WHERE seq = ?", (owner.seq,)).fetchone()[0]
    return _says_stopped(rest, ReadBudget())


def _says_stopped(rest: bytes, budget: ReadBudget) -> bool:
    """True if these fields of an episode say that a search stopped it; False if they cannot be read."""
    try:
        found = unpack(rest, budget)
    except (ValueError, TypeError, RecursionError):
        return False
    provenance = found.get("provenance") if isinstance(found, dict) else None
    return isinstance(provenance, Mapping) and is_stopped_by_search(provenance)
