"""Branches as rows of the index, which no list shows."""

from __future__ import annotations

from dataclasses import replace

from gymcp.store import BranchRow, EpisodeRow

COUNT_BRANCHES = """
UPDATE episodes SET branches = (
    SELECT count(*) FROM episodes b WHERE b.run = episodes.run AND b.task = episodes.task AND b.trial = episodes.trial
    AND b.attempt = episodes.attempt AND b.branch != ''
) WHERE run = ? AND branch = ''
"""
SELECT_TREE = """
SELECT b.n, b.id, b.branch, b.parent, b.shared, b.steps, b.score, b.outcome, b.reason, b.task, b.trial,
b.stopped
FROM episodes a JOIN episodes b
ON b.run = a.run AND b.task = a.task AND b.trial = a.trial AND b.attempt = a.attempt
WHERE a.n = ? ORDER BY b.seq < 0, abs(b.seq)
"""
"""Episodes of a tree: the first one, then its branches in the order of recording."""


def number_branch(row: BranchRow) -> EpisodeRow:
    """The branch with the length of its whole path, and with a negative number: first episodes have the others."""
    return replace(row.episode, seq=-row.episode.seq, steps=row.shared + row.episode.steps)
