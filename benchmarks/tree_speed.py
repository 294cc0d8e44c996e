"""Trees of any number of steps, and what credit on them takes in seconds and memory: a part of `training.py`."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.credit.tree.pairs import find_step_pairs
from gymcp.trainers.credit.tree.presets import TREE_PRESETS
from gymcp.trainers.credit.tree.step_tree import StepTree
from gymcp.trainers.credit.tree.tree_batch import make_tree_batch

LENGTH, LEAVES = 10, 8
"""Own steps of each branch, and branches of each task."""
COLUMNS = ("mismatch", "token_entropy")


def make_forked_tree(steps: int, seed: int = 0) -> StepTree:
    """A tree of tasks with `LEAVES` branches; each but the first forks from any step of one before it, but the last."""
    rng = np.random.default_rng(seed)
    branches = steps // LENGTH
    number = np.arange(branches)
    earlier = number - number % LEAVES + rng.integers(0, np.maximum(number % LEAVES, 1))
    parent = np.arange(branches * LENGTH) - 1
    fork = earlier * LENGTH + rng.integers(0, LENGTH - 1, branches)
    parent[::LENGTH] = np.where(number % LEAVES == 0, -1, fork)
    score = np.full(branches * LENGTH, np.nan)
    score[LENGTH - 1 :: LENGTH] = rng.integers(0, 2, branches)
    return StepTree(parent=parent, score=score, group=np.repeat(number // LEAVES, LENGTH))


def make_batch(tree: StepTree, seed: int = 0) -> StepBatch:
    """The batch of the tree, with random columns for the methods that read some."""
    rng = np.random.default_rng(seed)
    columns = {name: rng.integers(0, 2, tree.steps).astype(float) for name in COLUMNS}
    return make_tree_batch(tree, tokens=rng.integers(1, 60, tree.steps).astype(float), **columns)


def list_work(tree: StepTree) -> Mapping[str, Callable[[], object]]:
    """The methods on the tree by name, each as something to call."""
    batch = make_batch(tree)
    of_presets = {name: partial(assign_credit, batch, make()) for name, make in TREE_PRESETS.items()}
    return {**of_presets, "step pairs": partial(find_step_pairs, tree)}


def measure_seconds(work: Callable[[], object], rounds: int = 3) -> float:
    """Seconds of the fastest of some rounds."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


def measure_memory(work: Callable[[], object]) -> float:
    """Most memory (MB) that the work takes at once, beside what was there before."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 1e6
    finally:
        tracemalloc.stop()
