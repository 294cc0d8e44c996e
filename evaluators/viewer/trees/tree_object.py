"""The tree of a task for the page: its leaves with their own steps, values, advantages, and changes of the world."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations

from gymcp.evaluators.viewer.divergence import compare_episodes
from gymcp.evaluators.viewer.episode import MAX_STEPS, describe_changes, find, load
from gymcp.evaluators.viewer.runs import NotFound, OpenedRun, Runs
from gymcp.evaluators.viewer.trees.structure import Leaf, StepValue, draw_order, find_owners, value_steps
from gymcp.store import StepCredit
from gymcp.types import Json, Step, Trajectory

MAX_LEAVES = 128
"""Most leaves of a tree that are drawn; values count all."""
MAX_NAMES = 8
"""Most calls of a step that are named."""
MAX_NAME_CHARS = 80
MAX_TASK_CHARS = 300
MAX_PRESETS = 16
"""Most presets whose credit a tree shows."""
MAX_PAIRED_LEAVES = 16
"""Leaves of a tree of which an export holds every two side by side; of more, each with the one that it goes on from."""


def tree_object(runs: Runs, n: int) -> dict[str, Json]:
    """The tree that an episode belongs to; a single leaf if nothing branched off it. Raises NotFound."""
    opened, _ = find(runs, n)
    about = runs.index.tree(n)
    leaves = find_owners(about)
    values = value_steps(leaves)
    shown = draw_order(leaves[:MAX_LEAVES])  # parents are recorded first, so that none is missing
    credits = {leaf.id: () if opened.damaged else opened.store.credits(leaf.id) for leaf in shown}
    presets = _order_presets(credits.values())
    places = {leaf.id: at for at, leaf in enumerate(shown)}
    drawn = [
        _leaf_object(opened, leaf, values[leaf.id], places, credits[leaf.id], presets[:MAX_PRESETS]) for leaf in shown
    ]
    return {
        "n": n,
        "task": about[0].task[:MAX_TASK_CHARS],
        "trial": about[0].trial,
        "presets": presets[:MAX_PRESETS],
        "total_presets": len(presets),
        "total": len(leaves),
        "scored": sum(leaf.counts for leaf in leaves),
        "solved": sum(leaf.counts and (leaf.score or 0) >= 1 for leaf in leaves),
        "steps": sum(leaf.length - leaf.shared for leaf in leaves),
        "path_steps": sum(leaf.length for leaf in leaves),
        "leaves": drawn,
    }


def _order_presets(credits: Collection[Sequence[StepCredit]]) -> list[str]:
    """Presets by the number of leaves that have credit of them, the newest first among equals.

    So those that give credit to trees come before others, which give it to first episodes alone.
    """
    times: dict[str, list[str]] = {}
    for of_leaf in credits:
        for credit in of_leaf:
            times.setdefault(credit.preset, []).append(credit.assigned_at)
    return sorted(times, key=lambda preset: (len(times[preset]), max(times[preset])), reverse=True)


def _leaf_object(
    opened: OpenedRun,
    leaf: Leaf,
    values: Sequence[StepValue],
    places: dict[str, int],
    credits: Sequence[StepCredit],
    presets: Sequence[str],
) -> dict[str, Json]:
    about: dict[str, Json] = {
        "n": leaf.n,
        "branch": leaf.branch,
        "parent": None if leaf.parent is None else places[leaf.parent],
        "shared": leaf.shared,
        "length": leaf.length,
        "score": leaf.score,
        "stopped": bool(leaf.stopped),
        "outcome": leaf.outcome,
        "reason": leaf.reason[:200],
    }
    try:
        record = load(opened, leaf.id)
    except NotFound as error:
        return {**about, "problem": str(error), "nodes": [], "changes": None}
    by_preset = {credit.preset: credit for credit in credits}
    shown = range(leaf.shared, min(len(record.steps), MAX_STEPS))
    nodes = [
        {
            "at": at,
            "names": _name_action(record.steps[at]),
            "error": any(result.is_error for result in record.steps[at].results),
            "changed": record.steps[at].world_key != _key_before(record, at),
            "value": value.mean,
            "leaves": value.leaves,
            "advantages": [_advantage_at(by_preset.get(preset), at - leaf.shared) for preset in presets],
        }
        for at, value in zip(shown, values, strict=False)
    ]
    return {**about, "nodes": nodes, "changes": describe_changes(opened, record, leaf.shared, len(record.steps))}


def _advantage_at(credit: StepCredit | None, place: int) -> float | None:
    """The advantage of an episode's own step; None if it has none, as those after which no episode has a score."""
    return None if credit is None or place >= len(credit.advantages) else credit.advantages[place]


def _key_before(record: Trajectory, at: int) -> str:
    return record.steps[at - 1].world_key if at else record.initial_key


def _name_action(step: Step) -> list[str]:
    """Names of the tools that the step calls; none for a message."""
    return [call.name[:MAX_NAME_CHARS] for call in step.action.tool_calls[:MAX_NAMES]]


def compare_leaves(runs: Runs, n: int) -> dict[str, Json]:
    """First divergence and rows of leaves of one tree, by ``N-N``: every two, or of many, each with its parent's.

    `n`: an episode of the tree. Raises NotFound.
    """
    opened, _ = find(runs, n)
    leaves = find_owners(runs.index.tree(n))
    by_id = {leaf.id: leaf for leaf in leaves}
    if len(leaves) <= MAX_PAIRED_LEAVES:
        pairs = list(combinations(leaves, 2))
    else:
        pairs = [(by_id[leaf.parent], leaf) for leaf in leaves if leaf.parent is not None]
    found: dict[str, Json] = {}
    for pair in pairs:
        one, other = sorted(pair, key=lambda leaf: leaf.n)
        compared = compare_episodes(load(opened, one.id), load(opened, other.id), MAX_STEPS)
        found[f"{one.n}-{other.n}"] = compared
    return found
