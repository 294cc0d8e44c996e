"""Verdicts that people have given in the viewer, as labels to compare a judge with."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.judge.agreement import Label
from gymcp.evaluators.names import find_judged_points
from gymcp.store import EpisodeRow
from gymcp.store.notes import FAIL, PASS, Note

Notes = Mapping[str, Mapping[str, Note]]
"""Episode id -> person -> note."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """People's verdicts on a run."""

    labels: tuple[Label, ...]
    """A label for each episode with a verdict."""
    problems: tuple[str, ...]
    """Episodes that are left out, in words."""


def collect_verdicts(notes: Notes, rows: Sequence[EpisodeRow], *, by: str = "") -> Verdicts:
    """The verdicts of all people, or of the person `by` alone; an episode on which people disagree is left out.

    A person who has judged every point of the judge's rubrics, and given no verdict, passes the episode if all points
    pass.
    """
    points = {row.id: find_judged_points(row.components) for row in rows}
    labels: list[Label] = []
    problems: list[str] = []
    for id, people in notes.items():
        verdicts = {
            who: verdict
            for who, note in people.items()
            if by in ("", who) and (verdict := _verdict(note, points.get(id, ())))
        }
        if len(set(verdicts.values())) > 1:
            said = ", ".join(f"{who} says {verdict}" for who, verdict in sorted(verdicts.items()))
            problems.append(f"{id}: people disagree: {said}; name one of them with --by")
        elif verdicts:
            labels.append(Label(name=id, person=PASS in verdicts.values(), id=id))
    return Verdicts(labels=tuple(labels), problems=tuple(problems))


def pair_points(notes: Notes, rows: Sequence[EpisodeRow], *, by: str = "") -> dict[str, list[tuple[bool, bool]]]:
    """(person, judge) verdicts on each point of a rubric, by its name: of every person, or of the person `by` alone."""
    pairs: defaultdict[str, list[tuple[bool, bool]]] = defaultdict(list)
    for row in rows:
        points = find_judged_points(row.components)
        for who, note in notes.get(row.id, {}).items():
            for name, verdict in note.criteria.items():
                if by in ("", who) and name in points:
                    pairs[name].append((verdict == PASS, points[name]))
    return dict(sorted(pairs.items()))


def _verdict(note: Note, points: Collection[str]) -> str:
    if note.verdict or not points or set(points) - set(note.criteria):
        return note.verdict
    return FAIL if FAIL in (note.criteria[name] for name in points) else PASS
