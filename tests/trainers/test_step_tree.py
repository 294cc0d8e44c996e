"""The record of a tree: sums below and above its steps, its batch, and the trees that are refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trees import leaves_below, leaves_of_task, list_paths, mean_score, random_trees

from gymcp.errors import ConfigError
from gymcp.outcome import Outcome
from gymcp.trainers import (
    StepBatch,
    StepTree,
    assign_credit,
    batch_of,
    join_episodes,
    make_tree,
    make_tree_batch,
    make_tree_preset,
)
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.credit.tree.step_tree import (
    average_leaves,
    count_depth,
    count_leaves,
    measure_values,
    sum_above,
    sum_below,
)
from gymcp.trainers.credit.tree.tree_batch import find_tree
from gymcp.types import Action, Observation, SideAnswer, Step, Trajectory

NOTHING = Observation(messages=(), tools=())


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_values_are_the_mean_scores_of_the_leaves_below(tree: StepTree) -> None:
    value, leaves = measure_values(tree), count_leaves(tree)
    for step in range(tree.steps):
        below = leaves_below(tree, step)
        assert (leaves[step], value[step]) == (len(below), pytest.approx(mean_score(tree, below)))
    for group in set(tree.group.tolist()):
        all_of_task = leaves_of_task(tree, group)
        root = tree.steps + group
        assert (leaves[root], value[root]) == (len(all_of_task), pytest.approx(mean_score(tree, all_of_task)))


@settings(max_examples=50, deadline=None)
@given(random_trees(), st.data())
def test_sums_below_and_above_are_those_of_the_paths(tree: StepTree, data: st.DataObject) -> None:
    draw = st.lists(st.integers(-4, 4), min_size=tree.steps, max_size=tree.steps)
    values, factors = (np.array(data.draw(draw), float) for _ in range(2))
    expected = values.copy()
    for leaf, path in list_paths(tree).items():  # R = v + sum over the steps after it of f R, from the leaves up
        expected[path] = np.nan
        expected[leaf] = values[leaf]
    while np.isnan(expected).any():
        for step in np.flatnonzero(np.isnan(expected)).tolist():
            after = np.flatnonzero(tree.parent == step)
            expected[step] = values[step] + (factors[after] * expected[after]).sum()
    assert sum_below(tree, values, factors)[: tree.steps] == pytest.approx(expected)
    roots = data.draw(st.lists(st.integers(-4, 4), min_size=tree.groups, max_size=tree.groups))
    above = sum_above(tree, np.append(values, roots))
    for path in list_paths(tree).values():
        for place, step in enumerate(path):
            assert above[step] == roots[tree.group[step]] + values[path[: place + 1]].sum()
            assert count_depth(tree)[step] == place
    of_leaves = average_leaves(tree, values)
    for step in range(tree.steps):
        assert of_leaves[step] == pytest.approx(values[leaves_below(tree, step)].mean())


def test_a_long_path_is_no_long_loop() -> None:
    steps = 200_000
    order = np.random.default_rng(0).permutation(steps)
    parent = np.full(steps, -1)
    parent[order[1:]] = order[:-1]
    score = np.full(steps, np.nan)
    score[order[-1]] = 0.25
    tree = StepTree(parent=parent, score=score, group=np.zeros(steps, np.int64))
    assert set(measure_values(tree).tolist()) == {0.25}
    assert count_depth(tree)[order].tolist() == list(range(steps))


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "a parent that is not there": (
        {"parents": [-1, 7], "scores": [None, 1.0]},
        "tree: step 1 comes after step 7, which is not there; have 0 to 1, and -1 for the first step of a task",
    ),
    "a negative parent": (
        {"parents": [-1, -2], "scores": [None, 1.0]},
        "tree: step 1 comes after step -2, which is not there; have 0 to 1, and -1 for the first step of a task",
    ),
    "a step that is its own parent": (
        {"parents": [-1, 1], "scores": [1.0, None]},
        "tree: step 1 comes after itself, by way of its parents; each step hangs from a first one, whose parent is -1",
    ),
    "a circle, with a leaf that hangs from it": (
        {"parents": [1, 2, 0, 0], "scores": [None, None, None, 1.0]},
        "tree: step 2 comes after itself, by way of its parents; each step hangs from a first one, whose parent is -1",
    ),
    "a leaf without a score": (
        {"parents": [-1, 0, 0], "scores": [None, 1.0, None]},
        "tree: step 2 is a leaf without a score; grade its episode, or leave out the steps that lead to it alone",
    ),
    "a score in the middle": (
        {"parents": [-1, 0], "scores": [0.5, 1.0]},
        "tree: step 0 has a score, 0.5, and steps after it; the score of an episode belongs to its last step",
    ),
    "an infinite score": (
        {"parents": [-1], "scores": [float("inf")]},
        "tree: step 0 has the score inf; a score is a finite number",
    ),
    "a parent of another task": (
        {"parents": [-1, 0], "scores": [None, 1.0], "groups": [0, 1]},
        "tree: step 1 is of group 1, and step 0 before it of group 0; a tree is of one task",
    ),
    "a group beyond the steps": (
        {"parents": [-1], "scores": [1.0], "groups": [10**9]},
        "tree: step 0 is of group 1000000000; groups count from 0, without gaps",
    ),
    "different lengths": (
        {"parents": [-1, 0], "scores": [1.0]},
        "tree: 2 parents, 1 scores and 2 groups; give one of each for every step",
    ),
    "no step": ({"parents": [], "scores": []}, "tree: has no step to give credit to"),
}


@pytest.mark.parametrize(("given_", "message"), BAD.values(), ids=list(BAD))
def test_a_tree_that_makes_no_sense_is_refused_in_one_sentence(given_: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make_tree(**given_)
    assert str(raised.value) == message


def test_a_column_of_another_length_is_refused() -> None:
    tree = make_tree([-1], [1.0])
    with pytest.raises(ConfigError, match="tree: 2 values in the column 'trunk', and 1 steps"):
        make_tree_batch(tree, trunk=np.zeros(2))


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_the_tree_of_the_batch_of_a_tree_is_the_same(tree: StepTree) -> None:
    found = find_tree(make_tree_batch(tree))
    assert found.parent.tolist() == tree.parent.tolist()
    assert found.group.tolist() == tree.group.tolist()
    np.testing.assert_array_equal(found.score, tree.score)


def test_episodes_that_never_fork_are_paths() -> None:
    batch = batch_of_columns([[0.0, 1.0], [0.0], [0.0, 0.0, 0.5]], ["a", "a", "b"])
    tree = find_tree(batch)
    assert tree.parent.tolist() == [-1, 0, -1, -1, 3, 4]
    assert measure_values(tree).tolist() == [1, 1, 0, 0.5, 0.5, 0.5, 0.5, 0.5]
    back = make_tree_batch(tree)
    assert back.starts.tolist() == batch.starts.tolist()
    for key in ("group", "trajectory", "turn"):
        assert back.keys[key].tolist() == batch.keys[key].tolist()
    assert back.column("reward").tolist() == batch.column("reward").tolist()


BRANCHES = {"b": ("a", 1), "c": ("a", 1), "d": ("c", 2), "x": ("c", 2), "e": ("x", 3)}
"""Branches b and c share the first step of a, d and x the first two of c, and e the first three of x."""
PATHS = {"a": "aaa", "b": "ab", "c": "acc", "d": "acdd", "x": "acxx", "e": "acxe", "o": "oo"}
"""Episode -> letters of the episodes that played each step of its path."""
SCORES = {"a": 1.0, "b": 0.0, "c": 0.5, "d": 1.0, "x": None, "e": 0.0, "o": 0.25}


def record_episode(id: str) -> Trajectory:
    """An episode with the steps of its whole path. x has no score, and o is of another task."""
    steps = tuple(Step(turn=0, observation=NOTHING, action=Action(text=letter)) for letter in PATHS[id])
    outcome = Outcome.SCORED if SCORES[id] is not None else Outcome.ENV_INFRA
    answers = tuple(SideAnswer(step=step, context=0, action=Action(text=PATHS[id][step])) for step in (0, 1))
    group = "other" if id == "o" else "task"
    return Trajectory(
        id=id, env="e", task=group, group=group, steps=steps, outcome=outcome, score=SCORES[id], side_answers=answers
    )


def list_texts(batch: StepBatch) -> list[str]:
    return [step.action.text for record in batch.sources for step in record.steps]


def test_recorded_episodes_are_joined_to_a_tree_of_their_steps() -> None:
    """The lost episode x has no score; its one step that e shares is in the batch all the same, as its own."""
    batch = join_episodes([record_episode(id) for id in PATHS], BRANCHES)
    assert ["".join(step.action.text for step in record.steps) for record in batch.sources] == [
        "aaa", "b", "cc", "dd", "x", "e", "oo"
    ]  # fmt: skip
    tree = find_tree(batch)
    assert tree.parent.tolist() == [-1, 0, 1, 0, 0, 4, 4, 6, 4, 8, -1, 10]
    assert batch.keys["turn"].tolist() == [0, 1, 2, 1, 1, 2, 2, 3, 2, 3, 0, 1]
    assert measure_values(tree)[:12].tolist() == [0.5, 1, 1, 0, 0.5, 0.5, 1, 1, 0, 0, 0.25, 0.25]
    gain = assign_credit(batch, make_tree_preset("treeps")).advantage
    assert gain.tolist() == [0, 0.5, 0, -0.5, 0, 0, 0.5, 0, -0.5, 0, 0, 0]
    of_steps = [[(each.step, each.action.text) for each in record.side_answers] for record in batch.sources]
    assert of_steps == [[(0, "a"), (1, "a")], [(0, "b")], [(0, "c")], [], [], [], [(0, "o"), (1, "o")]]


def test_each_order_of_the_episodes_gives_the_same_tree() -> None:
    """As values by the paths, since the steps stand in another order."""
    values = []
    for ids in (list(PATHS), list(reversed(PATHS))):
        batch = join_episodes([record_episode(id) for id in ids], BRANCHES)
        tree = find_tree(batch)
        texts, value = list_texts(batch), measure_values(tree)
        paths = list_paths(tree).values()
        found = {("".join(texts[step] for step in path), *(float(value[step]) for step in path)) for path in paths}
        values.append(found)
    assert values[0] == values[1]
    assert len(values[0]) == 6


def test_episodes_without_branches_are_the_batch_of_their_records() -> None:
    records = [record_episode(id) for id in ("a", "o")]
    joined, plain = join_episodes(records, {}), batch_of(records)
    assert joined.sources == plain.sources
    assert joined.starts.tolist() == plain.starts.tolist()
    assert joined.keys["turn"].tolist() == plain.keys["turn"].tolist()


def test_an_episode_that_ended_while_others_go_on_counts_without_a_step_of_its_own() -> None:
    """c ends after its second step with 1/2, and d goes on from there to 1."""
    records = [record_episode("d"), record_episode("c")]
    records[1] = replace(records[1], steps=records[1].steps[:2])
    batch = join_episodes(records, BRANCHES)
    assert ["".join(step.action.text for step in record.steps) for record in batch.sources] == ["acdd"]
    tree = find_tree(join_episodes(records[::-1], BRANCHES))
    assert tree.parent.tolist() == [-1, 0, 1, 2, 1]
    assert measure_values(tree).tolist() == [0.75, 0.75, 1.0, 1.0, 0.5, 0.75]
    assert measure_values(find_tree(batch)).tolist() == [0.75, 0.75, 1.0, 1.0, 0.5, 0.75]


def test_branches_that_make_no_sense_are_refused() -> None:
    records = [record_episode("a"), record_episode("b")]
    with pytest.raises(ConfigError, match="tree: episode 'a' branches off itself, by way of its parents"):
        join_episodes(records, {"a": ("b", 1), "b": ("a", 1)})
    records[1] = replace(records[1], group="other")
    with pytest.raises(ConfigError, match="tree: step 3 is of group 1, and step 0 before it of group 0"):
        join_episodes(records, BRANCHES)
    with pytest.raises(ConfigError, match="no trajectory with a score"):
        join_episodes([record_episode("x")], BRANCHES)
