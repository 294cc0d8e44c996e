"""Notes on an episode for the page."""

from __future__ import annotations

from gymcp.evaluators.names import find_judged_points
from gymcp.evaluators.viewer.episode import find, load
from gymcp.evaluators.viewer.runs import OpenedRun, Runs
from gymcp.store.notes import Note
from gymcp.types import Json

UNNAMED = "unnamed"
"""Name of a person who has given none."""
MAX_OFFERED = 100
"""Most labels of a run that are offered to choose from."""
MAX_PEOPLE = 100
"""People whose notes on an episode are shown."""


def notes_object(runs: Runs, n: int, who: str) -> dict[str, Json]:
    """Notes on an episode, the reader's own first; and the criteria and labels to choose from. Raises NotFound."""
    opened, id = find(runs, n)
    people = opened.notes.get(id, {})
    notes = sorted(people.values(), key=lambda note: (note.who != who, note.at))[:MAX_PEOPLE]
    return {
        "who": who,
        "notes": [_note_object(note) for note in notes],
        "count": len(people),
        "criteria": list(find_judged_points(load(opened, id).components)),
        "labels": _list_labels(opened)[:MAX_OFFERED],
    }


def _list_labels(opened: OpenedRun) -> list[str]:
    """Labels of the run, the most frequent first."""
    counts: dict[str, int] = {}
    for people in opened.notes.values():
        for note in people.values():
            for label in note.labels:
                counts[label] = counts.get(label, 0) + 1
    return sorted(counts, key=lambda label: (-counts[label], label))


def _note_object(note: Note) -> dict[str, Json]:
    return {
        "who": note.who,
        "at": note.at[:19],
        "seen": note.at,
        "note": note.note,
        "labels": list(note.labels),
        "verdict": note.verdict,
        "criteria": dict(note.criteria),
    }
