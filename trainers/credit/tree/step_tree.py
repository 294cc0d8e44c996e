"""The record of a tree of steps, and sums over the steps below and above each.

A sum takes as many rounds as the depth of the tree has binary digits, each linear in the number of steps: no loop is as
long as a path.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.settings.arrays import Floats, Ints

START = -1
"""Parent of the first step of a task."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepTree:
    """[S] steps of episodes that fork, each stored once whichever leaves share it.

    A leaf is a step without a step after it, the end of an episode. The first steps of a task hang from its root, the
    situation before any step. So episodes that never fork are a tree, too: one path for each, from a common root.

    Raises ConfigError for arrays of different lengths, a parent that is not there or is of another task, a step that
    comes after itself, a leaf without a score, and a score on a step that is no leaf.
    """

    parent: Ints
    """[S]: the step before each; -1 for the first step of a task. Steps may have any order."""
    score: Floats
    """[S]: score of the episode that ended with the step; NaN, which is not 0, for a step that is no leaf."""
    group: Ints
    """[S]: number of the step's task, from 0."""

    def __post_init__(self) -> None:
        _check_arrays(self)
        _check_parents(self)
        _check_scores(self)

    @property
    def steps(self) -> int:
        return len(self.parent)

    @property
    def groups(self) -> int:
        return int(self.group.max()) + 1

    @property
    def is_leaf(self) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """[S]: true for the end of an episode."""
        return ~np.isnan(self.score)

    @property
    def places_before(self) -> Ints:
        """[S + G + 1]: the place before each place, which is the step before each step, or the root of its task.

        Places are the steps, then the root of each task, then one that stands before all roots and before itself.
        """
        end = self.steps + self.groups
        before = np.where(self.parent == START, self.steps + self.group, self.parent)
        return np.concatenate((before, np.full(self.groups + 1, end)))

    @property
    def steps_after(self) -> Ints:
        """[S + G]: number of steps that come next after each step, and after each root."""
        return np.bincount(self.places_before[: self.steps], minlength=self.steps + self.groups)


def make_tree(parents: Sequence[int], scores: Sequence[float | None], groups: Sequence[int] | None = None) -> StepTree:
    """[S] parents, [S] scores (None for a step that is no leaf), [S] tasks -> the tree. Without groups all steps are of
    one task. Raises what `StepTree` raises."""
    return StepTree(
        parent=np.array(parents, np.int64),
        score=np.array([np.nan if score is None else score for score in scores], float),
        group=np.zeros(len(parents), np.int64) if groups is None else np.array(groups, np.int64),
    )


def sum_below(tree: StepTree, values: Floats, factors: Floats | None = None) -> Floats:
    """[S] values -> [S + G]: for each step its own value and those of all steps below it; for each root those of all
    steps of its task.

    `factors` [S]: what the sum of each step is multiplied by on its way to the place before it; None: 1.
    """
    before = tree.places_before
    total, factor = np.zeros(len(before)), np.ones(len(before))
    total[: tree.steps] = values
    if factors is not None:
        factor[: tree.steps] = factors
    while np.any(before[:-1] != len(before) - 1):  # after k rounds each place holds the next 2^k generations
        total = total + np.bincount(before, total * factor, minlength=len(before))
        total[-1] = 0.0
        factor = factor * factor[before]
        before = before[before]
    return total[:-1]


def sum_above(tree: StepTree, values: Floats) -> Floats:
    """[S + G] values -> [S + G]: for each place its own value and those of all places on the way from the root."""
    before = tree.places_before
    total = np.append(values, 0.0)
    while np.any(before[:-1] != len(before) - 1):
        total = total + total[before]
        before = before[before]
    return total[:-1]


def count_leaves(tree: StepTree) -> Floats:
    """[S + G]: number of leaves below each step, and of each task; a leaf has one, itself."""
    return sum_below(tree, tree.is_leaf.astype(float))


def measure_values(tree: StepTree) -> Floats:
    """[S + G]: mean score of the leaves below each step, and of each task; a leaf has its own."""
    return sum_below(tree, np.nan_to_num(tree.score)) / np.maximum(count_leaves(tree), 1.0)


def average_leaves(tree: StepTree, values: Floats) -> Floats:
    """[S] values, of which only those of leaves are read -> [S]: mean over the leaves below each step."""
    return (sum_below(tree, np.where(tree.is_leaf, values, 0.0)) / np.maximum(count_leaves(tree), 1.0))[: tree.steps]


def count_depth(tree: StepTree) -> Ints:
    """[S]: number of steps before each on its path."""
    is_step = np.arange(tree.steps + tree.groups) < tree.steps
    return sum_above(tree, is_step.astype(float))[: tree.steps].astype(np.int64) - 1


def _check_arrays(tree: StepTree) -> None:
    lengths = {len(tree.parent), len(tree.score), len(tree.group)}
    if len(lengths) > 1:
        raise ConfigError(
            f"tree: {len(tree.parent)} parents, {len(tree.score)} scores and {len(tree.group)} groups; give one of each"
            " for every step"
        )
    if not tree.steps:
        raise ConfigError("tree: has no step to give credit to")
    if (step := _find((tree.group < 0) | (tree.group >= tree.steps))) is not None:
        raise ConfigError(f"tree: step {step} is of group {tree.group[step]}; groups count from 0, without gaps")
    if (step := _find(np.isinf(tree.score))) is not None:
        raise ConfigError(f"tree: step {step} has the score {tree.score[step]}; a score is a finite number")


def _check_parents(tree: StepTree) -> None:
    """Raise ConfigError for a parent that is not there or is of another task, or a step that comes after itself."""
    is_there = (tree.parent >= START) & (tree.parent < tree.steps)
    if (step := _find(~is_there)) is not None:
        raise ConfigError(
            f"tree: step {step} comes after step {tree.parent[step]}, which is not there; have 0 to {tree.steps - 1},"
            f" and {START} for the first step of a task"
        )
    before = np.where(tree.parent == START, np.arange(tree.steps), tree.parent)
    if (step := _find(tree.group != tree.group[before])) is not None:
        raise ConfigError(
            f"tree: step {step} is of group {tree.group[step]}, and step {before[step]} before it of group"
            f" {tree.group[before[step]]}; a tree is of one task"
        )
    places, end, reach = tree.places_before, tree.steps + tree.groups, 1
    while reach <= tree.steps and np.any(places != end):
        places, reach = places[places], 2 * reach
    if (step := _find(places != end)) is not None:
        raise ConfigError(
            f"tree: step {places[step]} comes after itself, by way of its parents; each step hangs from a first one,"
            f" whose parent is {START}"
        )


def _check_scores(tree: StepTree) -> None:
    ends, has_score = tree.steps_after[: tree.steps] == 0, ~np.isnan(tree.score)
    if (step := _find(ends & ~has_score)) is not None:
        raise ConfigError(
            f"tree: step {step} is a leaf without a score; grade its episode, or leave out the steps that lead to it"
            " alone"
        )
    if (step := _find(has_score & ~ends)) is not None:
        raise ConfigError(
            f"tree: step {step} has a score, {tree.score[step]:g}, and steps after it; the score of an episode belongs"
            " to its last step"
        )


def _find(is_bad: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> int | None:
    """The first place that is true; None if there is none."""
    return int(np.argmax(is_bad)) if np.any(is_bad) else None
