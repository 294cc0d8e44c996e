"""Random trees of steps, and what a walk over their paths gives: slow, and plain to read."""

from __future__ import annotations

from hypothesis import strategies as st

from gymcp.trainers import StepTree, make_tree


@st.composite
def random_trees(draw: st.DrawFn, max_steps: int = 14) -> StepTree:
    """A tree of one or two tasks whose steps stand in any order; leaves score 0, 1/2 or 1."""
    steps = draw(st.integers(1, max_steps))
    names = draw(st.permutations(range(steps)))
    parents, groups = [-1] * steps, [0] * steps
    for place in range(steps):
        before = draw(st.integers(-1, place - 1))
        step = names[place]
        parents[step] = -1 if before < 0 else names[before]
        groups[step] = draw(st.integers(0, min(1, steps - 1))) if before < 0 else groups[names[before]]
    scores = [None if step in parents else draw(st.sampled_from([0.0, 0.5, 1.0])) for step in range(steps)]
    return make_tree(parents, scores, groups)


def list_paths(tree: StepTree) -> dict[int, list[int]]:
    """Leaf -> the steps from the first one to it."""
    paths = {}
    for leaf in range(tree.steps):
        if tree.is_leaf[leaf]:
            path = [leaf]
            while tree.parent[path[0]] >= 0:
                path.insert(0, int(tree.parent[path[0]]))
            paths[leaf] = path
    return paths


def leaves_below(tree: StepTree, step: int) -> list[int]:
    """Leaves whose path has the step."""
    return [leaf for leaf, path in list_paths(tree).items() if step in path]


def leaves_of_task(tree: StepTree, group: int) -> list[int]:
    return [leaf for leaf in list_paths(tree) if tree.group[leaf] == group]


def mean_score(tree: StepTree, leaves: list[int]) -> float:
    return sum(float(tree.score[leaf]) for leaf in leaves) / len(leaves)
