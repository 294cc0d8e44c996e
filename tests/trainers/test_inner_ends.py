"""Episodes of a tree that ended where others went on: they count in all values, though no step is theirs alone.

Computed by hand. Five episodes of one task; each letter is a step:

    a b      score 1    the first episode gives up after b
    a b c    score 0    goes on from there
    a b      score 0    goes on from there, and gives up at once
    a        score 1    goes on after a, and gives up at once
             score 0    goes on before a, and gives up at once

So V(c) = 0, V(b) = 1/3, V(a) = 2/4, and the task's mean is 2/5.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from records import stop

from gymcp.evaluators.viewer.trees.structure import Leaf, find_owners, value_steps
from gymcp.trainers import assign_credit, find_step_pairs, join_episodes, make_tree_preset
from gymcp.trainers.credit.filters import DropUninformative
from gymcp.trainers.credit.step_batch import StepBatch
from gymcp.trainers.credit.tree.pairs import pair_steps
from gymcp.trainers.credit.tree.tree_batch import find_tree, join_trees
from gymcp.trainers.settings.preference import Preference
from gymcp.types import Action, Observation, Step, Trajectory

EPISODES = {"first": ("ab", 1.0), "on": ("abc", 0.0), "late": ("ab", 0.0), "early": ("a", 1.0), "none": ("", 0.0)}
BRANCHES = {"on": ("first", 2), "late": ("first", 2), "early": ("first", 1), "none": ("first", 0)}


def make_record(id: str, letters: str, score: float | None, task: str = "t") -> Trajectory:
    nothing = Observation(messages=(), tools=())
    steps = tuple(Step(turn=0, observation=nothing, action=Action(text=letter)) for letter in letters)
    return Trajectory(id=id, env="e", task=task, group=task, steps=steps, score=score)


def make_batch(**scores: float) -> StepBatch:
    """The tree above, with other scores of some episodes."""
    records = [make_record(id, letters, scores.get(id, score)) for id, (letters, score) in EPISODES.items()]
    return join_episodes(records, BRANCHES)


def test_values_count_every_scored_episode_as_the_viewer_does() -> None:
    batch = make_batch()
    assert ["".join(step.action.text for step in record.steps) for record in batch.sources] == ["ab", "c"]
    credit = assign_credit(batch, make_tree_preset("treeps"))
    assert credit.batch.column("node_value").tolist() == pytest.approx([1 / 2, 1 / 3, 0])
    assert credit.batch.column("leaves").tolist() == [4, 3, 1]
    assert credit.advantage.tolist() == pytest.approx([1 / 2 - 2 / 5, 1 / 3 - 1 / 2, -1 / 3])
    leaves = [
        Leaf(
            n=n, id=id, branch=id, parent=BRANCHES.get(id, (None, 0))[0], shared=BRANCHES.get(id, ("", 0))[1],
            length=len(letters), score=score, outcome="scored", reason="",
        )
        for n, (id, (letters, score)) in enumerate(EPISODES.items())
    ]  # fmt: skip
    shown = value_steps(find_owners(leaves))
    assert [value.mean for id in ("first", "on") for value in shown[id]] == pytest.approx([1 / 2, 1 / 3, 0])


def test_a_failed_call_that_a_search_went_back_from_is_a_rejected_step() -> None:
    """`dfsdt` left d after its failed call, and c solved the task (TP-LLaMA); it paused e, which says nothing."""
    solved = make_record("first", "abc", 1.0)
    others = [stop(make_record(letter, f"ab{letter}", 0.0), end) for letter, end in (("d", "failed"), ("e", "paused"))]
    batch = join_episodes([solved, *others], {"d": ("first", 2), "e": ("first", 2)})
    letters = [step.action.text for record in batch.sources for step in record.steps]
    pairs = find_step_pairs(find_tree(batch))
    assert [(letters[at], letters[worse]) for at, worse in zip(pairs.chosen, pairs.rejected, strict=True)] == [
        ("c", "d")
    ]


def test_arpo_compares_with_every_scored_episode() -> None:
    """The scores 1, 0, 0, 1, 0 have the mean 2/5 and the variance 3/10."""
    found = assign_credit(make_batch(), make_tree_preset("arpo")).advantage
    assert found.tolist() == pytest.approx([(value - 0.4) / (0.3**0.5 + 1e-6) for value in (1 / 2, 1 / 3, 0)])


def test_treepo_compares_every_scored_episode_with_its_subtrees() -> None:
    """The means are 2/5 of the task, 1/2 below a, 1/3 below b; the rows of the five have 2, 3, 2, 1 and 0 tokens."""
    of_episodes = np.array([1 - 37 / 90, -37 / 90, -37 / 90, 1 - 9 / 20, -2 / 5])
    plain = assign_credit(make_batch(), make_tree_preset("treepo", whiten=False)).advantage
    values = [of_episodes[:4].mean(), of_episodes[:3].mean(), of_episodes[1]]
    assert plain.tolist() == pytest.approx(values)
    rows = np.repeat(of_episodes, [2, 3, 2, 1, 0])
    white = assign_credit(make_batch(), make_tree_preset("treepo")).advantage
    assert white.tolist() == pytest.approx((np.array(values) - rows.mean()) / np.sqrt(rows.var(ddof=1) + 1e-8))


def test_a_trunk_is_worth_what_the_episodes_that_leave_it_score() -> None:
    """After b the first episode itself, on and late leave it: 1/3; after a only early, 1; before a only none, 0."""
    records = [make_record(id, letters, score) for id, (letters, score) in EPISODES.items()]
    found = assign_credit(join_trees(records, BRANCHES), make_tree_preset("segment_spo")).advantage
    assert found.tolist() == pytest.approx([1, 1 / 3 - 1, 0])


def test_only_steps_are_paired() -> None:
    """A second first episode, d, fails; giving up at once is no step that could be rejected."""
    records = [make_record(id, letters, score) for id, (letters, score) in EPISODES.items()]
    batch = join_episodes([*records, make_record("other", "d", 0.0)], BRANCHES)
    assert [len(find_step_pairs(find_tree(batch), rule="success").chosen) > 1, len(batch.inner_ends.steps)] == [True, 4]
    assert pair_steps(batch, batch, Preference()).tolist() == [[0, 3]]
    assert pair_steps(batch, batch, Preference(rule="value")).tolist() == [[0, 3]]


def test_a_filter_keeps_a_task_for_the_score_of_an_episode_that_has_no_step_left() -> None:
    alike = dict.fromkeys(EPISODES, 0.0)
    assert DropUninformative()(make_batch(**alike)).tolist() == [False, False]
    assert DropUninformative()(make_batch(**{**alike, "early": 1.0})).tolist() == [True, True]


def test_the_steps_of_an_episode_without_a_score_say_nothing_of_a_task() -> None:
    records = [make_record("first", "ab", None), make_record("on", "ac", 1.0), make_record("again", "ad", 1.0)]
    batch = join_episodes(records, {"on": ("first", 1), "again": ("first", 1)})
    assert ["".join(step.action.text for step in record.steps) for record in batch.sources] == ["a", "c", "d"]
    assert DropUninformative()(batch).tolist() == [False] * 3


def test_a_batch_without_a_task_keeps_the_ends_of_the_others() -> None:
    records = [make_record(id, letters, score) for id, (letters, score) in EPISODES.items()]
    batch = join_episodes([make_record("other", "d", 0.0, "before"), *records], BRANCHES)
    kept = batch.keep(np.array([False, True, True])).inner_ends
    alone = make_batch().inner_ends
    assert (kept.steps.tolist(), kept.scores.tolist()) == (alone.steps.tolist(), alone.scores.tolist())
    assert batch.keep(np.array([True, False, False])).inner_ends.scores.tolist() == []


def test_two_episodes_that_end_at_one_leaf_both_count() -> None:
    records = [make_record("first", "ab", 1.0), make_record("late", "ab", 0.0)]
    batch = join_episodes(records, {"late": ("first", 2)})
    assert assign_credit(batch, make_tree_preset("arpo")).batch.column("node_value").tolist() == [0.5, 0.5]


def test_a_score_at_a_step_of_a_lost_episode_is_not_that_episodes_zero() -> None:
    """The only scored episode gives up after c, which the lost one played before it was lost at d: V(c) = 1."""
    records = [make_record("first", "abcd", None), make_record("late", "abc", 1.0)]
    batch = join_episodes(records, {"late": ("first", 3)})
    assert ["".join(step.action.text for step in record.steps) for record in batch.sources] == ["abc"]
    assert assign_credit(batch, make_tree_preset("treeps")).batch.column("node_value").tolist() == [1.0] * 3


def test_an_episode_without_a_step_of_a_task_without_one_is_left_out() -> None:
    records = [make_record("first", "ab", 1.0), replace(make_record("none", "", 0.0), group="other")]
    assert join_episodes(records, {}).inner_ends.scores.tolist() == []
