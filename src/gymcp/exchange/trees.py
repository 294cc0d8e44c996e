"""Trees in other formats: an episode's place in its tree, and imported episodes put together to trees again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from gymcp.errors import ConfigError
from gymcp.store import BranchRecord, BranchRow
from gymcp.store.validation import require_integer, require_text
from gymcp.types import Json, Step, Trajectory

BRANCH_KEY = "branch"
"""Key of a branch's place in a line; in ATIF, after ``gymcp_`` in ``extra``."""
MAX_PLACE_CHARS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """An episode that was read, with its place in a tree."""

    trajectory: Trajectory
    """The episode with all steps of its path."""
    tags: tuple[str, ...] = ()
    branch: str = ""
    """As in `BranchRecord`; empty for a first episode."""
    shared: int = 0
    """Number of steps that it shares with its parent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTree:
    """A first episode with its branches, each after its parent."""

    first: Imported
    branches: tuple[BranchRecord, ...] = ()


def encode_place(row: BranchRow) -> dict[str, Json]:
    """Place of a branch and its number of shared steps, as JSON."""
    return {"place": row.branch, "shared": row.shared}


def add_place(trajectory: Trajectory, tags: tuple[str, ...], place: Mapping[str, Json] | None) -> Imported:
    """The episode with the place that `encode_place` gave. Raises TypeError, ValueError or KeyError for any other."""
    if place is None:
        return Imported(trajectory=trajectory, tags=tags)
    branch = require_text(place["place"], "the place of a branch")
    shared = require_integer(place["shared"], "the number of shared steps")
    if not branch or len(branch) > MAX_PLACE_CHARS:
        raise ValueError(f"the place of a branch has {len(branch)} characters")
    if not 0 <= shared <= len(trajectory.steps):
        raise ValueError(f"it shares {shared} steps and has {len(trajectory.steps)}")
    return Imported(trajectory=trajectory, tags=tags, branch=branch, shared=shared)


def join_trees(episodes: Iterable[Imported], where: str) -> Iterator[ImportedTree]:
    """First episodes, each with the branches that follow it, one tree in memory at a time.

    Raises ConfigError for a branch that does not follow the first episode of its tree and its own parent, and for one
    whose shared steps are not its parent's.
    """
    first: Imported | None = None
    paths: dict[str, Trajectory] = {}
    branches: list[BranchRecord] = []
    for each in episodes:
        if not each.branch:
            if first is not None:
                yield ImportedTree(first=first, branches=tuple(branches))
            first, paths, branches = each, {each.trajectory.id: each.trajectory}, []
            continue
        who = f"{where}: branch '{each.branch[:60]}' of task '{each.trajectory.task[:60]}'"
        parent = paths.get(each.trajectory.parent or "")
        if first is None or parent is None:
            raise ConfigError(f"{who}: stands before the episode that it goes on from")
        if list(map(_acts, each.trajectory.steps[: each.shared])) != list(map(_acts, parent.steps[: each.shared])):
            raise ConfigError(f"{who}: its first {each.shared} steps are not those of the episode that it goes on from")
        paths[each.trajectory.id] = each.trajectory
        branches.append(BranchRecord(trajectory=each.trajectory, branch=each.branch, shared=each.shared))
    if first is not None:
        yield ImportedTree(first=first, branches=tuple(branches))


def _acts(step: Step) -> tuple[str, list[tuple[str, str]]]:
    """Text and calls of a step."""
    return step.action.text, [(call.id, call.name) for call in step.action.tool_calls]
