"""The record of a search: a tree whose first episode is the chosen one, with all others as branches of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from gymcp.agents.runner.rollout import Rollout
from gymcp.store import BranchRecord
from gymcp.types import Json, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """An episode as the search has played it."""

    rollout: Rollout
    parent: int | None
    """Number of the episode that it went on from; None: it began with a fresh world."""
    shared: int
    """Number of steps that it shares with that one; 0 without one."""


def reroot(episodes: Sequence[Searched], chosen: int) -> Rollout:
    """The chosen episode with its branches: all other episodes, each after its parent, by its place beside them.

    Edges on the way from the chosen episode back to the start are turned round: what two episodes share is the same
    seen from either. An episode that began with a fresh world shares no step with the one that it hangs on.

    The chosen episode has the usage of all, since that is what its answer took, and the others have none.
    """
    edges = _turn(episodes, chosen)
    known: dict[str, Json] = dict(episodes[chosen].rollout.states)
    places: dict[int, str] = {chosen: ""}
    taken: Counter[tuple[int, int]] = Counter()
    branches: list[BranchRecord] = []
    for number in _list_parents_first(edges, chosen, len(episodes)):
        parent, shared = edges[number]
        taken[parent, shared] += 1
        place = f"{shared}.{taken[parent, shared]}"
        places[number] = f"{places[parent]}/{place}" if places[parent] else place
        played = episodes[number].rollout
        record = replace(played.trajectory, parent=episodes[parent].rollout.trajectory.id, usage=Usage())
        new = {ref: state for ref, state in played.states.items() if ref not in known}
        known |= new
        branches.append(BranchRecord(trajectory=record, branch=places[number], shared=shared, states=new))
    first = episodes[chosen].rollout
    usage = add_usages([each.rollout.trajectory.usage for each in episodes])
    return replace(first, trajectory=replace(first.trajectory, parent=None, usage=usage), branches=tuple(branches))


def add_usages(usages: Sequence[Usage]) -> Usage:
    """The usage of all together, from when the first one began. Raises ValueError if there is none."""
    numbers = [each.name for each in fields(Usage) if each.name not in ("started_at", "tools", "models")]
    return Usage(
        started_at=min(usage.started_at for usage in usages),
        tools=_add_tables([usage.tools for usage in usages]),
        models=_add_tables([usage.models for usage in usages]),
        **{name: sum(getattr(usage, name) for usage in usages) for name in numbers},
    )


def _add_tables(tables: Sequence[Mapping[str, Mapping[str, float]]]) -> dict[str, dict[str, float]]:
    """Name -> its figures in all tables together."""
    total: dict[str, dict[str, float]] = {}
    for table in tables:
        for name, figures in table.items():
            entry = total.setdefault(name, {})
            for key, value in figures.items():
                entry[key] = entry.get(key, 0) + value
    return total


def _turn(episodes: Sequence[Searched], chosen: int) -> dict[int, tuple[int, int]]:
    """Number of each episode but the chosen one -> its parent and the number of steps that it shares with it."""
    edges: dict[int, tuple[int, int]] = {}
    for number, each in enumerate(episodes):
        if number:
            edges[number] = (0, 0) if each.parent is None else (each.parent, each.shared)
    number, turned = chosen, dict[int, tuple[int, int]]()
    while number in edges:
        parent, shared = edges[number]
        turned[parent] = (number, shared)
        number = parent
    edges.pop(chosen, None)
    edges |= turned
    return {number: _climb(edges, *edge) for number, edge in edges.items()}


def _climb(edges: dict[int, tuple[int, int]], parent: int, shared: int) -> tuple[int, int]:
    """The episode that played the last of the shared steps itself, and their number."""
    while parent in edges and shared <= edges[parent][1]:
        parent = edges[parent][0]
    return parent, shared


def _list_parents_first(edges: dict[int, tuple[int, int]], chosen: int, count: int) -> list[int]:
    """All numbers but the chosen one in the order of playing, each after its parent."""
    ordered, done = list[int](), {chosen}
    while len(done) < count:
        ready = [number for number in range(count) if number not in done and edges[number][0] in done]
        ordered += ready
        done |= set(ready)
    return ordered
