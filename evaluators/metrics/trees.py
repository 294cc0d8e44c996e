"""Figures of trees: episodes that branched, beside the first ones, which alone count for the success of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass

from gymcp.evaluators.metrics.measure import measure_pass_k, rate
from gymcp.evaluators.metrics.records import PassK, Rate
from gymcp.store import BranchRow, EpisodeRow


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeFigures:
    """Figures of a run's trees. A leaf is the end of an episode: each first episode is one, and each branch."""

    trees: int
    """Number of first episodes, those that nothing branched off included."""
    branched: int
    """Number of trees with a branch."""
    branches: int
    depth: int
    """Largest number of branchings on a path."""
    leaves_fewest: int
    """Number of leaves of the smallest tree."""
    leaves_mean: float
    leaves_most: int
    """Number of leaves of the largest tree."""
    roots: Rate
    """Success of the first episodes, which is the run's."""
    leaves: Rate
    """Success of all leaves but those that a search stopped, which tell nothing about success. Branches were chosen by
    what happened, so it is no estimate of the run's success."""
    stopped: int
    """Number of leaves that a search stopped, to go on from others or from there."""
    pass_k: tuple[PassK, ...]
    """Chance that at least one (`at`), or each (`hat`), of k leaves succeeds that are drawn from those of a task.

    Leaves share steps, so it is another figure than pass@k over trials. Empty if no task has two scored leaves.
    """
    steps: int
    """Number of steps that were played, each counted once."""
    path_steps: int
    """Number of steps on the paths of all leaves: what they would have taken without sharing any."""
    tool_calls: int
    """Tool calls of branches."""
    tokens: int
    """Tokens that models read and wrote in branches."""
    cost: float
    """Cost of branches, which the run's spending leaves out."""


def measure_trees(
    attempts: Sequence[EpisodeRow], branches: Sequence[BranchRow], stopped: Set[str] = frozenset()
) -> TreeFigures | None:
    """Figures of the trees of these episodes; None if nothing branched off them.

    `attempts`: first episodes; branches of others, and of attempts that do not count, are left out. `stopped`: ids of
    episodes that a search stopped (`TrajectoryStore.stopped_leaves`).
    """
    roots = [row for row in attempts if row.latest]
    wanted = {(row.task, row.trial, row.attempt) for row in roots}
    found = [each for each in branches if (each.episode.task, each.episode.trial, each.episode.attempt) in wanted]
    if not found:
        return None
    rows = [each.episode for each in found]
    leaves = Counter((row.task, row.trial) for row in (*roots, *rows))
    ended = [row for row in (*roots, *rows) if row.id not in stopped]
    return TreeFigures(
        trees=len(roots),
        branched=len({(row.task, row.trial) for row in rows}),
        branches=len(rows),
        depth=max(each.branch.count("/") + 1 for each in found),
        leaves_fewest=min(leaves.values()),
        leaves_mean=leaves.total() / len(leaves),
        leaves_most=max(leaves.values()),
        roots=rate(roots),
        leaves=rate(ended),
        stopped=len(roots) + len(rows) - len(ended),
        pass_k=measure_pass_k(ended),
        steps=sum(row.steps for row in (*roots, *rows)),
        path_steps=sum(row.steps for row in roots) + sum(each.shared + each.episode.steps for each in found),
        tool_calls=sum(row.usage.tool_calls for row in rows),
        tokens=sum(row.usage.prompt_tokens + row.usage.completion_tokens for row in rows),
        cost=math.fsum(row.usage.cost for row in rows),
    )
