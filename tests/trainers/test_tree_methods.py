"""Methods on trees: against vectors, against sums over the rows of all leaves, and by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from trees import leaves_below, list_paths, mean_score, random_trees
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers import (
    Preset,
    StepTree,
    advantages,
    assign_credit,
    branch_probability,
    credit_segments,
    cut_text,
    find_step_pairs,
    make_preset,
    make_tree,
    make_tree_batch,
    make_tree_preset,
    measure_top_entropy,
    preference_loss,
)
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.preset import make_single_loss
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.settings.arrays import Floats


def credit_tree(tree: StepTree, preset: Preset, tokens: Floats | None = None) -> Floats:
    """[S]: advantages of the preset on the tree."""
    return assign_credit(make_tree_batch(tree, tokens=tokens), preset).advantage


# ARPO


def test_arpo_forks_by_the_change_of_entropy_after_a_result() -> None:
    vector = VECTORS["arpo_branch"]
    inputs = vector["inputs"]
    initial, after = (
        measure_top_entropy(inputs[f"top_logprobs_{when}"], vocabulary=inputs["vocab"])
        for when in ("initial", "after_tool")
    )
    assert (initial, after, after - initial) == near((vector["H_initial"], vector["H_after"], vector["delta"]))
    found = branch_probability(after, initial, base=inputs["base"], weight=inputs["w"])
    assert found == near(vector["P_branch"])


def test_the_probability_of_a_fork_stays_between_0_and_1() -> None:
    assert [branch_probability(entropy, 0.0) for entropy in (-9.0, 0.0, 9.0)] == [0.0, 0.5, 1.0]
    assert measure_top_entropy([0.0, -float("inf")], vocabulary=10) == 0.0
    with pytest.raises(ConfigError, match="log-probabilities of at most 0"):
        measure_top_entropy([0.5], vocabulary=10)


def score_leaves(tree: StepTree) -> dict[int, float]:
    """GRPO's advantage of each leaf."""
    leaves = list(list_paths(tree))
    found = advantages(make_preset("grpo"), [[float(tree.score[n])] for n in leaves], tree.group[leaves].tolist())
    return {leaf: value for leaf, (value,) in zip(leaves, found, strict=True)}


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_arpo_is_the_mean_of_grpo_over_the_leaves(tree: StepTree) -> None:
    of_leaves = score_leaves(tree)
    expected = [np.mean([of_leaves[leaf] for leaf in leaves_below(tree, step)]) for step in range(tree.steps)]
    assert credit_tree(tree, make_tree_preset("arpo")) == pytest.approx(np.array(expected), abs=1e-9)


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_weighed_by_leaves_shared_steps_have_the_gradient_of_repeated_rows(tree: StepTree) -> None:
    tokens = np.arange(1.0, tree.steps + 1)
    of_leaves = score_leaves(tree)
    repeated, count = np.zeros(tree.steps), 0.0
    for leaf, path in list_paths(tree).items():
        repeated[path] += of_leaves[leaf] * tokens[path]
        count += tokens[path].sum()
    found = credit_tree(tree, make_tree_preset("arpo", by_leaves=True), tokens)
    assert found * tokens / tokens.sum() == pytest.approx(repeated / count, abs=1e-9)


def test_episodes_that_never_fork_have_the_advantages_of_grpo() -> None:
    rewards = [[0.0, 1.0], [0.0], [0.0, 0.0, 0.5], [1.0]]
    batch = batch_of_columns(rewards, ["a", "a", "a", "b"])
    found, plain = (
        assign_credit(batch, preset).advantage for preset in (make_tree_preset("arpo"), make_preset("grpo"))
    )
    assert found == pytest.approx(plain, abs=1e-12)


# TreePO


def compare_leaf(tree: StepTree, path: list[int], *, by_leaves: bool) -> float:
    """TreePO's comparison of a leaf, one subtree after the other."""
    task = [leaf for leaf in list_paths(tree) if tree.group[leaf] == tree.group[path[0]]]
    subtrees = [task, *(below for step in path if len(below := leaves_below(tree, step)) > 1)]
    weights = [len(leaves) if by_leaves else 1 for leaves in subtrees]
    gains = [float(tree.score[path[-1]]) - mean_score(tree, leaves) for leaves in subtrees]
    return sum(w * gain for w, gain in zip(weights, gains, strict=True)) / sum(weights)


@pytest.mark.parametrize("weight", ["average", "leaves"])
@settings(max_examples=40, deadline=None)
@given(tree=random_trees())
def test_treepo_compares_a_leaf_with_each_subtree_it_is_in(weight: str, tree: StepTree) -> None:
    paths = list_paths(tree)
    of_leaves = {leaf: compare_leaf(tree, path, by_leaves=weight == "leaves") for leaf, path in paths.items()}
    tokens = np.arange(1.0, tree.steps + 1)
    rows = np.repeat(list(of_leaves.values()), [int(tokens[path].sum()) for path in paths.values()])
    for whiten in (False, True):
        centre, scale = (rows.mean(), np.sqrt(rows.var(ddof=1) + 1e-8)) if whiten and len(paths) > 1 else (0.0, 1.0)
        of_steps = [np.mean([of_leaves[leaf] for leaf in leaves_below(tree, step)]) for step in range(tree.steps)]
        expected = (np.array(of_steps) - centre) / scale
        found = credit_tree(tree, make_tree_preset("treepo", weight=weight, whiten=whiten), tokens)
        assert found == pytest.approx(expected, abs=1e-6)


# TreePS-RAG


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_gains_along_a_path_add_up_to_the_score_less_the_mean_of_the_task(tree: StepTree) -> None:
    gain = credit_tree(tree, make_tree_preset("treeps"))
    for leaf, path in list_paths(tree).items():
        task = [other for other in list_paths(tree) if tree.group[other] == tree.group[leaf]]
        assert gain[path].sum() == pytest.approx(float(tree.score[leaf]) - mean_score(tree, task), abs=1e-9)


def test_siblings_are_compared_with_each_other_alone() -> None:
    tree = make_tree([-1, 0, 0, 0, -1], [None, 1.0, 0.5, 0.0, 0.25])
    assert credit_tree(tree, make_tree_preset("treeps", centre="siblings")).tolist() == [0.125, 0.5, 0.0, -0.5, -0.125]
    scaled = credit_tree(tree, make_tree_preset("treeps", centre="siblings", norm="mean_std"))
    assert scaled == pytest.approx([0.5**0.5, 1.0, 0.0, -1.0, -(0.5**0.5)], abs=1e-5)


# segment SPO


def test_segments_of_text_gain_what_their_ends_are_worth_more() -> None:
    vector = VECTORS["spo_chain_segments"]
    inputs = vector["inputs"]
    probabilities, threshold = np.array(inputs["token_prob"]), inputs["threshold"]
    segment = cut_text(probabilities, threshold=threshold, interval=inputs["cutpoint_interval"])
    assert segment.tolist() == [0, 0, 0, 0, 1, 1, 1, 2]
    assert np.flatnonzero(probabilities < threshold).tolist() == vector["low_prob_tokens"]
    values = np.array(inputs["segment_boundary_values"])
    everywhere = credit_segments(values, segment)
    assert [everywhere[segment == n][0] for n in range(3)] == near(vector["segment_adv"])
    unsure = credit_segments(values, segment, probabilities, threshold=threshold)
    assert unsure.tolist() == near(vector["masked_token_adv"])


def test_segments_without_their_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="2 values for 2 segments; give one more"):
        credit_segments(np.zeros(2), np.array([0, 1]))
    with pytest.raises(ConfigError, match="0 unsure tokens cannot end a segment"):
        cut_text(np.zeros(2), interval=0)


TRUNK = [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]


def trunk_tree() -> StepTree:
    """The trunk 0, 1, 2, 3 scores 1. Episodes 4 and 5 leave it after step 1, and 6 and then 7 before its first step."""
    return make_tree([-1, 0, 1, 2, 1, 1, -1, 6], [None, None, None, 1.0, 1.0, 0.0, None, 0.0])


def test_a_trunk_is_credited_between_the_steps_whose_values_are_known() -> None:
    """The values are 0 before step 0, 1/2 after step 1, and 1 at the end."""
    batch = make_tree_batch(trunk_tree(), trunk=np.array(TRUNK))
    credit = assign_credit(batch, make_tree_preset("segment_spo"))
    assert credit.advantage.tolist() == [0.5, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0, 0.0]
    assert np.isnan(credit.batch.column("segment_gain")).tolist() == [not on for on in TRUNK]


def test_a_trunk_alone_begins_at_the_mean_of_its_task() -> None:
    tree = make_tree([-1, 0, -1], [None, 1.0, 0.0])
    batch = make_tree_batch(tree, trunk=np.ones(3))
    assert assign_credit(batch, make_tree_preset("segment_spo")).advantage.tolist() == [0.5, 0.5, -0.5]


@settings(max_examples=25, deadline=None)
@given(random_trees())
def test_without_a_trunk_each_step_is_a_segment(tree: StepTree) -> None:
    assert (
        credit_tree(tree, make_tree_preset("segment_spo")).tolist()
        == credit_tree(tree, make_tree_preset("treeps")).tolist()
    )


@pytest.mark.parametrize(
    ("trunk", "message"),
    [
        ([1, 0, 1, 1, 0, 0, 0, 0], "step 2 is of a trunk, and step 1 before it is not"),
        ([1, 1, 1, 1, 1, 0, 0, 0], "the trunk forks after step 1; a trunk is one episode"),
    ],
)
def test_a_trunk_with_a_gap_or_a_fork_is_refused(trunk: list[float], message: str) -> None:
    batch = make_tree_batch(trunk_tree(), trunk=np.array(trunk))
    with pytest.raises(ConfigError, match=message):
        assign_credit(batch, make_tree_preset("segment_spo"))


# UI-S1


def test_a_return_neither_passes_a_replaced_action_nor_takes_it_in() -> None:
    """Six steps, of which the third and the last are replaced; a second episode keeps its own returns."""
    term = make_tree_preset("ui_s1").advantage_terms[1]
    found = advantages(
        make_single_loss(replace(term, centre="none"), shapers=make_tree_preset("ui_s1").shapers),
        [[1.0, 1.0, 0.5, 1.0, 1.0, 0.25], [0.0, 1.0]],
        ["a", "a"],
        mismatch=[[0.0, 0.0, 1.0, 0.0, 0.0, 1.0], [0.0, 0.0]],
    )
    assert found == [[1.5, 1.0, 0.5, 1.5, 1.0, 0.25], [0.5, 1.0]]


def test_ui_s1_without_the_column_is_refused() -> None:
    with pytest.raises(ConfigError, match="needs the column mismatch, which nothing has computed"):
        advantages(make_tree_preset("ui_s1"), [[1.0]], ["a"])


# pairs and DPO


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_pairs_are_all_failed_steps_beside_each_step_on_the_way_to_success(tree: StepTree) -> None:
    solved = [any(tree.score[leaf] == 1.0 for leaf in leaves_below(tree, step)) for step in range(tree.steps)]
    before = tree.places_before
    expected = [
        (chosen, rejected)
        for chosen in range(tree.steps)
        for rejected in range(tree.steps)
        if before[chosen] == before[rejected] and solved[chosen] and not solved[rejected]
    ]
    pairs = find_step_pairs(tree)
    assert list(zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True)) == expected
    for chosen, rejected, margin in zip(pairs.chosen, pairs.rejected, pairs.margin, strict=True):
        of_pair = [mean_score(tree, leaves_below(tree, int(step))) for step in (chosen, rejected)]
        assert margin == pytest.approx(of_pair[0] - of_pair[1])


@settings(max_examples=50, deadline=None)
@given(random_trees())
def test_the_best_is_paired_with_the_worst_of_each_place(tree: StepTree) -> None:
    expected = []
    for place in set(tree.places_before[: tree.steps].tolist()):
        beside = np.flatnonzero(tree.places_before[: tree.steps] == place).tolist()
        values = [mean_score(tree, leaves_below(tree, step)) for step in beside]
        if max(values) > min(values):
            expected.append((beside[values.index(max(values))], beside[values.index(min(values))]))
    pairs = find_step_pairs(tree, rule="value")
    assert list(zip(pairs.chosen.tolist(), pairs.rejected.tolist(), strict=True)) == sorted(expected)


def test_a_rule_for_pairs_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="pairs: no rule 'luck'; have success, value"):
        find_step_pairs(make_tree([-1], [1.0]), rule="luck")  # type: ignore[arg-type]


def test_preferences_move_both_members_of_a_pair_apart() -> None:
    """Pairs that the policy and its reference rank alike have the loss log 2, and beta / 2 of a gradient each way."""
    chosen = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    rejected = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    reference = torch.zeros(2, dtype=torch.float64)
    weights = torch.tensor([3.0, 1.0], dtype=torch.float64)
    loss = preference_loss(
        chosen, rejected, reference_chosen=reference, reference_rejected=reference, beta=0.4, weights=weights
    )
    up, down = torch.autograd.grad(loss, (chosen, rejected))
    assert loss.item() == pytest.approx(np.log(2))
    assert up.tolist() == pytest.approx([-0.15, -0.05])
    assert down.tolist() == pytest.approx([0.15, 0.05])


def test_no_pair_is_no_loss() -> None:
    none = torch.zeros(0, requires_grad=True)
    loss = preference_loss(none, none, reference_chosen=none, reference_rejected=none)
    (gradient,) = torch.autograd.grad(loss, none)
    assert (loss.item(), gradient.tolist()) == (0.0, [])


# all presets


@pytest.mark.parametrize("name", ["arpo", "treepo", "treeps", "segment_spo"])
def test_a_task_whose_leaves_all_scored_alike_has_no_credit(name: str) -> None:
    tree = make_tree([-1, 0, 0, -1, 3], [None, 0.3, 0.3, None, 0.3])
    assert credit_tree(tree, make_tree_preset(name)).tolist() == [0.0] * 5


def test_tasks_never_mix() -> None:
    """A task beside another has the credit that it has alone; whitening is over the batch, and left out."""
    parents, scores = [-1, 0, 0, -1], [None, 1.0, 0.0, 0.0]
    alone = make_tree(parents, scores)
    beside = make_tree([*parents, -1, 4, -1], [*scores, None, 0.5, 1.0], [0, 0, 0, 0, 1, 1, 1])
    names = ("arpo", "treeps", "segment_spo")
    for preset in (*map(make_tree_preset, names), make_tree_preset("treepo", whiten=False)):
        assert credit_tree(beside, preset)[:4] == pytest.approx(credit_tree(alone, preset), abs=1e-12)


def test_a_tree_preset_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="no preset of trees 'grpo'; have arpo, aepo, treepo, treeps, segment_spo"):
        make_tree_preset("grpo")
    with pytest.raises(ConfigError, match="preset 'treepo': no option 'luck'"):
        make_tree_preset("treepo", luck=1)
    with pytest.raises(ConfigError, match="preset 'ui_s1': gamma"):
        make_tree_preset("ui_s1", gamma=2.0)
    with pytest.raises(ConfigError, match="centre must be 'siblings'"):
        make_tree_preset("treeps", norm="mean_std")


def test_tree_presets_are_explained() -> None:
    lines = "\n".join(explain_preset(make_tree_preset("arpo")))
    assert "compared among leaves of the same task; each leaf counts once" in lines
    lines = "\n".join(explain_preset(make_tree_preset("treeps", centre="siblings")))
    assert "compared among steps after the same step; each step counts once" in lines
    lines = "\n".join(explain_preset(make_tree_preset("ui_s1")))
    assert "up to a step with mismatch, which has its own matched alone" in lines
    lines = "\n".join(explain_preset(make_tree_preset("aepo")))
    assert "above 1.28 a token counts 1.28 and keeps its gradient" in lines
    assert "the second 0 after 3: advantages [0.528, 0.618], [-0.707, -0.797, -0.886]" in lines
