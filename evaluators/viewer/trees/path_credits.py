"""Credit of an episode's path, which branches share in part."""

from __future__ import annotations

from dataclasses import replace

from gymcp.evaluators.viewer.runs import OpenedRun, Runs
from gymcp.evaluators.viewer.trees.structure import find_owners
from gymcp.store import StepCredit


def credits_on_path(runs: Runs, opened: OpenedRun, n: int, id: str) -> tuple[StepCredit, ...]:
    """Credit of all steps of an episode's path: of a branch, that of the steps that it shares is their owners'.

    A preset is left out if one of the owners has no credit of it for the steps that are shared.
    """
    if opened.damaged:
        return ()
    joined = opened.store.credits(id)
    leaves = {leaf.id: leaf for leaf in find_owners(runs.index.tree(n))} if joined else {}
    leaf = leaves.get(id)
    while leaf is not None and leaf.parent is not None:
        owner = leaves[leaf.parent]
        kept = leaf.shared - owner.shared
        stored = opened.store.credits(owner.id)  # fewer than all steps of an episode whose score counts nowhere
        before = {credit.preset: credit for credit in stored if len(credit.advantages) >= kept}
        joined = tuple(_join(before[each.preset], each, kept) for each in joined if each.preset in before)
        leaf = owner
    return joined


def _join(before: StepCredit, after: StepCredit, kept: int) -> StepCredit:
    """Credit of the first `kept` steps of one, then that of the other."""
    return replace(
        after,
        rewards=(*before.rewards[:kept], *after.rewards),
        returns=(*before.returns[:kept], *after.returns),
        advantages=(*before.advantages[:kept], *after.advantages),
    )
