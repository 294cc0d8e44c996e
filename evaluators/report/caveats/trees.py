"""The part of a report on trees: episodes that branched, and what they say that the run's success does not count."""

from __future__ import annotations

from gymcp.evaluators.metrics import Rate, TreeFigures
from gymcp.evaluators.report.formatting import interval, percent
from gymcp.evaluators.report.html import Html, join
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.report.sections import rows_section

TREES = "Trees"
LEAVES = "pass@k over leaves"
LEAVES_HEADINGS = ("k", "pass@k over leaves", "pass^k over leaves", "tasks that count", "n, their scored leaves")
TREES_NOTE = (
    "All other figures count the first episode of each tree alone. Branches were chosen by what happened, so the"
    " success of leaves is no estimate of the run's."
)
LEAVES_NOTE = (
    "Chance that at least one, and each, of k leaves succeeds, drawn from all leaves of a task. Leaves share steps and"
    " are not independent: it is not pass@k over trials."
)
MAX_K_LISTED = 12
"""Values of k that are listed; beyond them, the doubled ones and the last."""


def trees_section(evidence: Evidence) -> Html:
    """Figures of the trees and pass@k over their leaves; empty if nothing branched."""
    if evidence.trees is None:
        return join()
    headings = tuple(f"#{heading}" for heading in LEAVES_HEADINGS)
    return join(
        rows_section(TREES, ("", ""), list(tree_rows(evidence.trees)), TREES_NOTE),
        rows_section(LEAVES.capitalize(), headings, list(leaf_rows(evidence.trees)), LEAVES_NOTE),
    )


def tree_rows(trees: TreeFigures) -> list[tuple[str, str]]:
    """(name, value) of each figure."""
    same = trees.leaves_fewest == trees.leaves_most
    spread = "" if same else f", {trees.leaves_fewest} to {trees.leaves_most}"
    saved = 1 - trees.steps / trees.path_steps if trees.path_steps else 0.0
    spent = [f"{trees.tool_calls:,} tool calls"]
    spent += [f"{trees.tokens:,} tokens"] if trees.tokens else []
    spent += [f"cost {trees.cost:.4f}"] if trees.cost else []
    stopped = [("leaves that the search stopped, not counted as such", f"{trees.stopped:,}")] if trees.stopped else []
    return [
        ("trees", f"{trees.trees:,}, {trees.branched:,} of them with branches"),
        ("branches", f"{trees.branches:,}"),
        ("depth: most branchings on a path", str(trees.depth)),
        ("leaves of a tree, the first episode's included", f"{trees.leaves_mean:.1f} in the mean{spread}"),
        ("success of roots: the first episodes", _describe(trees.roots)),
        ("success of leaves, roots included", f"{percent(trees.leaves.success)}, {trees.leaves.coverage}"),
        *stopped,
        ("steps played", f"{trees.steps:,}, on paths of {trees.path_steps:,}: {percent(saved)} were shared"),
        ("branches used, beside the figures of the run", ", ".join(spent)),
    ]


def leaf_rows(trees: TreeFigures) -> list[tuple[str, ...]]:
    """Rows of pass@k over leaves; the columns are `LEAVES_HEADINGS`."""
    last = len(trees.pass_k)
    return [
        (
            str(each.k),
            percent(each.at),
            percent(each.hat),
            str(each.tasks),
            str(each.most) if each.fewest == each.most else f"{each.fewest} to {each.most}",
        )
        for each in trees.pass_k
        if each.k <= MAX_K_LISTED or each.k == last or each.k & (each.k - 1) == 0
    ]


def _describe(rate: Rate) -> str:
    bounds = f" ({interval(rate.ci95)})" if rate.ci95 else ""
    return f"{percent(rate.success)}{bounds}, {rate.coverage}"
