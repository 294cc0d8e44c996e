"""A tree as a batch of steps, on which advantage terms work, and the tree of a batch."""

from __future__ import annotations

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.step_batch import COST_COLUMNS, StepBatch
from gymcp.trainers.credit.tree.step_tree import START, StepTree, count_depth
from gymcp.trainers.settings.arrays import Floats, Ints

PARENT = "parent"
"""Key of a batch of trees: equal for steps that come after the same step, or that begin the same task."""


def make_tree_batch(tree: StepTree, *, tokens: Floats | None = None, **columns: Floats) -> StepBatch:
    """The batch of a tree, with the key ``parent``, and further columns [S]. `tokens` [S]: drawn in each step; None: 1.

    A trajectory is a stretch of steps each of which comes after the one before it in the arrays: an episode, or a
    branch of one without the steps that it shares. The reward of a leaf is its score. ``turn`` counts the steps from
    the start of the task. Raises ConfigError for a column of another length.
    """
    steps = tree.steps
    for name, column in {**columns, "tokens": tokens}.items():
        if column is not None and len(column) != steps:
            raise ConfigError(f"tree: {len(column)} values in the column '{name}', and {steps} steps")
    begins = tree.parent != np.arange(steps) - 1
    begins[0] = True
    starts = np.append(np.flatnonzero(begins), steps)
    zeros, ones = np.zeros(steps), np.ones(steps)
    return StepBatch(
        starts=starts,
        columns={
            "reward": np.nan_to_num(tree.score),
            "valid": ones,
            **dict.fromkeys(("calls", "errors", "cost", *COST_COLUMNS.values()), zeros),
            "tokens": ones if tokens is None else tokens,
            **columns,
        },
        keys={
            "group": tree.group,
            "trajectory": np.cumsum(begins) - 1,
            "state": np.arange(steps),
            "turn": count_depth(tree),
            PARENT: tree.places_before[:steps],
        },
        tasks=tuple(map(str, tree.group[starts[:-1]].tolist())),
    )


def find_tree(batch: StepBatch) -> StepTree:
    """The tree of a batch before any filter. Without the key ``parent`` no episode forks, and each is a path by itself.

    The score of a leaf is its reward; rewards of other steps are not read. Raises what `StepTree` raises.
    """
    parent = _find_parents(batch)
    is_inner = np.zeros(len(parent), bool)
    is_inner[parent[parent != START]] = True
    score = np.where(is_inner, np.nan, np.nan_to_num(batch.column("reward")))
    return StepTree(parent=parent, score=score, group=batch.keys["group"])


def _find_parents(batch: StepBatch) -> Ints:
    steps = int(batch.starts[-1])
    if PARENT in batch.keys:
        return np.where(batch.keys[PARENT] >= steps, START, batch.keys[PARENT])
    parent = np.arange(steps) - 1
    parent[batch.starts[:-1]] = START
    return parent
