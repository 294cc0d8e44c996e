"""A tree as a batch of steps, on which advantage terms work, and the tree of a batch."""

from __future__ import annotations

from collections.abc import Sequence

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


def join_branches(batch: StepBatch, forks: Sequence[tuple[int, int] | None]) -> StepBatch:
    """The batch of trajectories that fork from each other, with the key ``parent``.

    `forks` [N]: (trajectory, step) after which each one begins, both counted from 0; None for one that begins with its
    task. A trajectory holds its own steps alone, and ends with a score of its own, so nothing forks from its last step.
    ``turn`` then counts the steps from the start of the task. Raises ConfigError for a fork that is not there, and what
    `StepTree` raises.
    """
    if len(forks) != len(batch.tasks):
        raise ConfigError(f"tree: {len(forks)} forks for {len(batch.tasks)} trajectories; give one for each, or None")
    parent = np.arange(int(batch.starts[-1])) - 1
    parent[batch.starts[:-1]] = [START if fork is None else _find_fork(batch, n, *fork) for n, fork in enumerate(forks)]
    places = np.where(parent == START, int(batch.starts[-1]) + batch.keys["group"], parent)
    joined = batch.with_keys(**{PARENT: places})
    return joined.with_keys(turn=count_depth(find_tree(joined)))


def _find_fork(batch: StepBatch, branch: int, trajectory: int, step: int) -> int:
    """Place in the batch of the step that a branch begins after."""
    if not 0 <= trajectory < len(batch.tasks):
        raise ConfigError(f"tree: trajectory {branch} forks from {trajectory}; have 0 to {len(batch.tasks) - 1}")
    length = int(batch.starts[trajectory + 1] - batch.starts[trajectory])
    if not 0 <= step < length - 1:
        raise ConfigError(
            f"tree: trajectory {branch} forks after step {step} of {trajectory}, which has {length}; nothing comes"
            " after the last one"
        )
    return int(batch.starts[trajectory]) + step


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
