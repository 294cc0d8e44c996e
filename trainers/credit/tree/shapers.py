"""Shapers of the methods on trees: columns of values, of comparisons above and below, and of segments.

Each step is trained once. Its advantage is the mean over the leaves below it, so what later forks decide cancels out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.estimators import ROUNDING_SHARE, AdvantageTerm, StdScale, estimate_advantage
from gymcp.trainers.credit.preset import Singleton
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.credit.tree.step_tree import (
    START,
    StepTree,
    average_leaves,
    count_leaves,
    measure_values,
    sum_above,
    sum_below,
)
from gymcp.trainers.credit.tree.tree_batch import MISMATCH, PARENT, find_tree, make_tree_batch
from gymcp.trainers.settings.arrays import Floats, Ints

AncestorWeight = Literal["average", "leaves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeValues:
    """Columns ``node_value``, the mean score of the leaves below a step; ``gain``, that less the mean score of all
    leaves below the step before it, or of the task; ``leaves``, their number; and ``leaf``, 1 for the end of an
    episode. Key ``parent``: equal for steps that come after the same step.
    """

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        tree, steps = find_tree(batch), int(batch.starts[-1])
        before, value = tree.places_before[:steps], measure_values(tree)
        here = value[:steps]
        shaped = batch.with_columns(
            node_value=here,
            gain=_subtract(here, value[before]),
            leaves=count_leaves(tree)[:steps],
            leaf=tree.is_leaf[:steps].astype(float),
        )
        return shaped.with_keys(**{PARENT: before}), trackers


MATCHED = "matched"
"""Column of `StepMatches`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMatches:
    """Column ``matched``: 1 on the recorded steps whose action was not replaced by a demonstration's, 0 on the others;
    the reward, in a batch of bare columns."""

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        rewards = 1.0 - batch.column(MISMATCH) if batch.sources else batch.column("reward")
        return batch.with_columns(**{MATCHED: rewards}), trackers


@dataclass(frozen=True, slots=True, kw_only=True)
class AncestorComparison:
    """Column ``above``: a leaf's score less the mean score of each subtree that it is in, averaged over these subtrees;
    a step has the mean over the leaves below it.

    The subtrees are those of the task and of every step that more than one leaf shares. `weight`: each subtree counts
    once, or as many times as it has leaves. `whiten`: the values of leaves are whitened over the tokens of all paths,
    so a shared token counts once for each leaf that shares it, as in the authors' rows.

    Their nodes are segments of 512 tokens, and here they are steps: a long stretch without a fork counts once for each
    of its steps. A task with a single leaf gets 0 before the whitening; their code gives its score. Their code can
    also leave out subtrees whose leaves all scored alike, which would change nothing here but the weights.

    Source: TreePO, verl/trainer/ppo/core_algos.py.
    """

    weight: AncestorWeight = "average"
    whiten: bool = True
    singleton: Singleton = "zero"

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        tree, steps = find_tree(batch), int(batch.starts[-1])
        found = compare_with_subtrees(tree, self.weight, self.singleton)
        if self.whiten:
            tokens = np.append(batch.column("tokens"), np.zeros(tree.steps - steps))
            found[tree.is_leaf] = _whiten_leaves(tree, found, tokens)
        return batch.with_columns(above=average_leaves(tree, found)[:steps]), trackers


def compare_with_subtrees(tree: StepTree, weight: AncestorWeight, singleton: Singleton = "zero") -> Floats:
    """[S]: score of each leaf less the weighted mean of the mean scores of the subtrees that it is in; 0 on other
    steps. `AncestorComparison` says which subtrees count."""
    leaves, value = count_leaves(tree), measure_values(tree)
    weights = np.where(weight == "leaves", leaves, 1.0)
    weights[: tree.steps] *= leaves[: tree.steps] > 1
    baseline = (sum_above(tree, weights * value) / np.maximum(sum_above(tree, weights), 1.0))[: tree.steps]
    if singleton == "raw":
        baseline = np.where(leaves[tree.steps + tree.group] > 1, baseline, 0.0)
    return np.where(tree.is_leaf, _subtract(np.nan_to_num(tree.score), baseline), 0.0)


def _whiten_leaves(tree: StepTree, values: Floats, tokens: Floats) -> Floats:
    """[S], [S] -> [leaves]: values of the leaves, whitened over the tokens of their whole paths."""
    of_path = sum_above(tree, np.append(tokens, np.zeros(tree.groups)))[: tree.steps][tree.is_leaf]
    scale = StdScale(epsilon=1e-8, epsilon_in_variance=True)
    term = AdvantageTerm(signal="reward", key=(), unit="step", returns="none", scale=scale, by_tokens=True)
    own = values[tree.is_leaf]
    alone = StepTree(parent=np.full(len(own), START), score=own, group=np.zeros(len(own), np.int64))
    return estimate_advantage(term, make_tree_batch(alone, tokens=of_path))


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentGain:
    """Column ``segment_gain``: value at the end of a step's segment less that at its beginning.

    With a column ``trunk``, 1 on the steps of episodes that are trained on and 0 on those that only estimate values:
    the value after a step of a trunk is the mean score of the episodes that leave the trunk there, the value at its end
    is its score, and a segment goes from one step with a value to the next. A value at the start of a task without such
    episodes is the mean score of all its leaves. Steps off the trunk get NaN: they are not trained on. Raises
    ConfigError if a step of the trunk comes after one off the trunk, or if a trunk forks.

    Without the column each step is a segment, and each value the mean score of the leaves below: the gain in
    `TreeValues`.

    Source: SPO, math_episode_generator_with_mc_advantages.py, whose segments are of text (`text_segments`); that a step
    is the segment of an agent with tools is ours.
    """

    def __call__(self, batch: StepBatch, trackers: Trackers) -> tuple[StepBatch, Trackers]:
        if "trunk" not in batch.columns:
            shaped, trackers = TreeValues()(batch, trackers)
            return shaped.with_columns(segment_gain=shaped.column("gain")), trackers
        tree, steps = find_tree(batch), int(batch.starts[-1])
        trunk = np.append(batch.column("trunk") > 0, np.zeros(tree.steps - steps, bool))
        gain = measure_segment_gains(tree, trunk)[:steps]
        return batch.with_columns(segment_gain=gain), trackers


def measure_segment_gains(tree: StepTree, trunk: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> Floats:
    """[S], [S] true on trunks -> [S]: gain in value over the segment of each step of a trunk, NaN off the trunks.

    `SegmentGain` says what a segment is, and what raises ConfigError.
    """
    before = tree.places_before
    _check_trunk(tree, trunk)
    leaves_trunk = np.where(trunk, 0.0, 1.0)  # nothing passes from one step of a trunk to the one before
    own = np.where(tree.is_leaf, 1.0, 0.0)
    count = sum_below(tree, own, leaves_trunk)
    total = sum_below(tree, np.nan_to_num(tree.score), leaves_trunk)
    value = np.divide(total, count, out=measure_values(tree), where=count > 0)
    has_value = np.append(count > 0, True)
    has_value[tree.steps :] = True
    steps = np.arange(len(before))
    following = steps.copy()  # a step without a value takes the next of the trunk
    inner = np.flatnonzero(trunk)
    following[before[inner]] = inner
    after = _follow(np.where(has_value, steps, following))
    since = _follow(np.where(has_value, steps, before))[before]
    known = np.append(value, 0.0)
    return np.where(trunk, _subtract(known[after], known[since])[: tree.steps], np.nan)


def _follow(pointers: Ints) -> Ints:
    """[P] places -> [P]: the place at which the pointers from each end; one that points to itself is an end."""
    while np.any(pointers != pointers[pointers]):
        pointers = pointers[pointers]
    return pointers


def _check_trunk(tree: StepTree, trunk: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> None:
    inner = trunk & (tree.parent != START)
    if np.any(off := inner & ~trunk[tree.parent]):
        step = int(np.argmax(off))
        raise ConfigError(f"tree: step {step} is of a trunk, and step {tree.parent[step]} before it is not")
    if np.any(forks := np.bincount(tree.parent[inner], minlength=tree.steps) > 1):
        raise ConfigError(f"tree: the trunk forks after step {int(np.argmax(forks))}; a trunk is one episode")


def _subtract(values: Floats, other: Floats) -> Floats:
    """[S], [S] -> [S]: the difference, 0 if the values are equal but for rounding."""
    difference = values - other
    difference[np.abs(difference) <= ROUNDING_SHARE * np.abs(values)] = 0.0
    return difference
