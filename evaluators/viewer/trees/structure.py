"""The shape of a tree: the step that each leaf goes on from, the order of drawing, and the value of each step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """An episode of a tree; its end is a leaf, its own steps are those that it does not share."""

    n: int
    """Number of the episode in the viewer."""
    id: str
    branch: str
    """Place in the tree; empty for the first episode."""
    parent: str | None
    """Id of the episode that it goes on from; None for the first one."""
    shared: int
    """Number of steps of its parent before its own."""
    length: int
    """Number of steps of its whole path."""
    score: float | None
    outcome: str
    reason: str
    task: str = ""
    trial: int = 0
    stopped: int = 0
    """1 if a search stopped the episode: its score counts in no value."""

    @property
    def counts(self) -> bool:
        """True if its score counts in values of steps."""
        return self.score is not None and not self.stopped


@dataclass(frozen=True, slots=True, kw_only=True)
class StepValue:
    """Scores below a step: of the leaves whose path it is on."""

    leaves: int
    scored: int
    mean: float | None
    """Mean score of the leaves whose score counts; None if there is none."""


def find_owners(leaves: Sequence[Leaf]) -> list[Leaf]:
    """The leaves, each with the episode as parent that has played the last of its shared steps.

    A branch that shares no step of its parent's own goes on from where its parent does. `leaves`: parents first; those
    whose parent is missing are left out.
    """
    known: dict[str, Leaf] = {}
    for leaf in leaves:
        if leaf.parent is None:
            known[leaf.id] = leaf
            continue
        if (owner := known.get(leaf.parent)) is None:
            continue
        while owner.parent is not None and leaf.shared <= owner.shared:
            owner = known[owner.parent]
        known[leaf.id] = replace(leaf, parent=owner.id)
    return list(known.values())


def draw_order(leaves: Sequence[Leaf]) -> list[Leaf]:
    """Each leaf below the one that it goes on from; those that branch off later come first, so that no lines cross."""
    below: dict[str | None, list[Leaf]] = {}
    for leaf in leaves:
        below.setdefault(leaf.parent, []).append(leaf)
    ordered: list[Leaf] = []
    waiting = below.get(None, [])[::-1]
    while waiting:
        leaf = waiting.pop()
        ordered.append(leaf)
        waiting += sorted(below.get(leaf.id, []), key=lambda each: (-each.shared, _place(each)), reverse=True)
    return ordered


def _place(leaf: Leaf) -> list[int]:
    return [int(number) for number in re.findall(r"\d{1,9}", leaf.branch)]


def value_steps(leaves: Sequence[Leaf]) -> dict[str, list[StepValue]]:
    """Id -> the value of each of its own steps. `leaves`: as `find_owners` gives them, parents first."""
    below: dict[str, list[tuple[int, int, int, float]]] = {leaf.id: [] for leaf in leaves}
    values: dict[str, list[StepValue]] = {}
    for leaf in reversed(leaves):  # an episode stands before those that go on from it
        count, scored, total = 1, int(leaf.counts), leaf.score or 0.0 if leaf.counts else 0.0
        forks = sorted(below[leaf.id])
        found: list[StepValue] = []
        for at in range(leaf.length - 1, leaf.shared - 1, -1):
            while forks and forks[-1][0] > at:
                _, leaves_of, scored_of, total_of = forks.pop()
                count, scored, total = count + leaves_of, scored + scored_of, total + total_of
            found.append(StepValue(leaves=count, scored=scored, mean=total / scored if scored else None))
        values[leaf.id] = found[::-1]
        if leaf.parent is not None:
            below[leaf.parent].append((leaf.shared, count, scored, total))
    return values
