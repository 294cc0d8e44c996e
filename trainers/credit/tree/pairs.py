"""Preferences between steps of a tree: what training on pairs (DPO) learns from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gymcp.errors import ConfigError
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.credit.tree.step_tree import StepTree, measure_values, sum_below
from gymcp.trainers.credit.tree.tree_batch import find_tree
from gymcp.trainers.settings.arrays import Floats, Ints
from gymcp.trainers.settings.preference import PairRule, Preference


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StepPairs:
    """[P] pairs of steps that were taken in one situation: both come after the same step, or begin the same task."""

    chosen: Ints
    """[P]: the better step of each pair."""
    rejected: Ints
    """[P]: the worse one."""
    margin: Floats
    """[P]: mean score of the leaves below the better one, less that below the worse one."""


def find_step_pairs(
    tree: StepTree, *, rule: PairRule = "success", success: float = 1.0, steps: int | None = None
) -> StepPairs:
    """The pairs of a tree, in the order of the steps that were chosen.

    ``success``: every step that leads to a leaf with that score or a better one, with every step after the same one
    that leads to none (TP-LLaMA). ``value``: after each step, the one of the highest mean score with the one of the
    lowest, unless all are equal; of equals, the first (step-level Q). Time and memory grow with the number of steps
    and of pairs. TP-LLaMA pairs along the one path of success that its search found; with several such paths every
    step on one of them is chosen, which is ours. `steps`: only the first so many are paired, though all count in the
    values; None: all.

    Sources: arXiv:2406.07115 (TP-LLaMA), arXiv:2409.09345 (step-level Q).
    """
    paired = slice(tree.steps if steps is None else steps)
    value, before = measure_values(tree)[paired], tree.places_before[paired]
    if rule == "value":
        chosen, rejected = _pair_extremes(before, value)
    elif rule == "success":
        solved = tree.is_leaf & (np.nan_to_num(tree.score) >= success - 1e-9)
        chosen, rejected = _pair_all(before, sum_below(tree, solved.astype(float))[paired] > 0)
    else:
        raise ConfigError(f"pairs: no rule {rule!r:.80}; have success, value")
    return StepPairs(chosen=chosen, rejected=rejected, margin=value[chosen] - value[rejected])


def pair_steps(shaped: StepBatch, kept: StepBatch, preference: Preference) -> Ints:
    """[P, 2] steps of the kept batch: the better and the worse one of each pair.

    `shaped`: the batch before the filters, which left `kept`; a pair with a step that they dropped is left out.
    """
    tree, steps = find_tree(shaped), int(shaped.starts[-1])
    pairs = find_step_pairs(tree, rule=preference.rule, success=preference.success, steps=steps)
    is_kept = np.isin(shaped.keys["trajectory"], kept.keys["trajectory"])
    number = np.cumsum(is_kept) - 1
    both = is_kept[pairs.chosen] & is_kept[pairs.rejected]
    return np.stack((number[pairs.chosen[both]], number[pairs.rejected[both]]), axis=1)


def _pair_extremes(before: Ints, value: Floats) -> tuple[Ints, Ints]:
    """The first best and the first worst of the steps after each place, if they differ in value."""
    steps = np.arange(len(before))
    rising = np.lexsort((steps, value, before))
    falling = np.lexsort((steps, -value, before))
    is_first = np.diff(before[rising], prepend=-1) != 0
    worst, best = rising[is_first], falling[is_first]
    differ = value[best] > value[worst]
    order = np.argsort(best[differ], kind="stable")
    return best[differ][order], worst[differ][order]


def _pair_all(before: Ints, leads: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> tuple[Ints, Ints]:
    """Every step that leads to success, with every step after the same one that does not."""
    failed = np.flatnonzero(~leads)
    failed = failed[np.argsort(before[failed], kind="stable")]
    count = np.bincount(before[failed], minlength=int(before.max()) + 1)
    first = np.cumsum(count) - count
    chosen = np.flatnonzero(leads)
    each = count[before[chosen]]
    offset = np.arange(int(each.sum())) - np.repeat(np.cumsum(each) - each, each)
    return np.repeat(chosen, each), failed[np.repeat(first[before[chosen]], each) + offset]
