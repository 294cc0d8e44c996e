"""Parity of tree presets with their authors' code, which has one row for each leaf: written here again, row by row."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from page_blocks import DOCS
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers import advantages, assign_credit, make_tree, make_tree_batch, make_tree_preset
from gymcp.trainers.credit.presets import PARITY, PRESETS
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.tree.presets import TREE_PRESETS
from gymcp.trainers.credit.tree.step_tree import StepTree
from gymcp.trainers.credit.tree.sure_tokens import LeaveOutSure, TokenProbabilities
from gymcp.trainers.credit.tree.tree_batch import join_trees
from gymcp.trainers.settings.arrays import Floats
from gymcp.types import Action, Observation, Sampled, Step, Trajectory

TREES: Mapping[str, StepTree] = {
    "page": make_tree([-1, 0, 0, -1, 3, 4, 4, 4, -1], [None, 1.0, 0.0, None, None, 1.0, 0.0, 0.0, 0.0]),
    "one leaf beside": make_tree([-1, 0, 0, -1, 3], [None, 1.0, 0.25, None, 1.0], [0, 0, 0, 1, 1]),
    "two tasks": make_tree([-1, 0, 1, 1, 0, -1, -1], [None, None, 1.0, 0.0, 0.5, 1.0, 0.0], [0, 0, 0, 0, 0, 1, 1]),
}
TOKENS = np.array([3.0, 1.0, 2.0, 5.0, 1.0, 4.0, 2.0, 1.0, 6.0])
ENTROPY = np.array([0.1, 1.5, 0.7, 0.2, 2.0, 0.9, 0.4, 1.1, 0.3])


def path_of(tree: StepTree, leaf: int) -> list[int]:
    """The steps of a leaf's row, the first one first."""
    steps = [leaf]
    while tree.parent[steps[0]] >= 0:
        steps.insert(0, int(tree.parent[steps[0]]))
    return steps


def list_rows(tree: StepTree) -> dict[int, list[int]]:
    return {leaf: path_of(tree, leaf) for leaf in np.flatnonzero(tree.is_leaf).tolist()}


def compare_in_groups(tree: StepTree) -> dict[int, float]:
    """GRPO's advantage of each row; a row alone in its task keeps its score, as in verl."""
    found = {}
    for leaf in list_rows(tree):
        scores = tree.score[tree.is_leaf & (tree.group == tree.group[leaf])]
        alone = len(scores) == 1
        mean, deviation = (0.0, 1.0) if alone else (scores.mean(), scores.std(ddof=1))
        found[leaf] = (tree.score[leaf] - mean) / (deviation + (0.0 if alone else 1e-6))
    return found


def compare_in_subtrees(tree: StepTree) -> dict[int, float]:
    """TreePO's, averaged over subtrees: the task's, and each node's with more than one leaf; whitened over tokens."""
    rows = list_rows(tree)
    found = {}
    for leaf, path in rows.items():
        groups = [[other for other in rows if tree.group[other] == tree.group[leaf]]]
        groups += [[other for other, steps in rows.items() if node in steps] for node in path]
        kept = [groups[0], *(group for group in groups[1:] if len(group) > 1)]
        means = [0.0 if len(group) == 1 else tree.score[group].mean() for group in kept]
        found[leaf] = float(np.mean([tree.score[leaf] - mean for mean in means]))
    of_tokens = np.repeat([*found.values()], [int(TOKENS[path].sum()) for path in rows.values()])
    scale = np.sqrt(of_tokens.var(ddof=1) + 1e-8)
    return {leaf: (value - of_tokens.mean()) / scale for leaf, value in found.items()}


def spread_on_tokens(tree: StepTree, of_rows: Mapping[int, float], factor: Floats) -> Floats:
    """[S]: gradient of a loss averaged over the rows' tokens with respect to the mean log-probability of each step."""
    rows = list_rows(tree)
    total = sum(TOKENS[path].sum() for path in rows.values())
    found = np.zeros(tree.steps)
    for leaf, path in rows.items():
        for step in path:
            found[step] += of_rows[leaf] * factor[step] * TOKENS[step] / total
    return found


def balance_entropy(tree: StepTree) -> Floats:
    """[S]: AEPO's factor, with mean and deviation over the tokens of all rows, in which shared ones are repeated."""
    repeated = [ENTROPY[step] for path in list_rows(tree).values() for step in path for _ in range(int(TOKENS[step]))]
    deviation: Floats = (ENTROPY[: tree.steps] - np.mean(repeated)) / (np.std(repeated, ddof=1) + 1e-8)
    return 1 + 0.2 * deviation


def ones(tree: StepTree) -> Floats:
    return np.ones(tree.steps)


@pytest.mark.parametrize("tree", TREES.values(), ids=TREES)
@pytest.mark.parametrize(
    ("name", "compare", "factor"),
    [
        ("arpo", compare_in_groups, ones),
        ("aepo", compare_in_groups, balance_entropy),
        ("treepo", compare_in_subtrees, ones),
    ],
)
def test_parity_settings_have_the_gradient_of_the_authors_rows(
    name: str,
    compare: Callable[[StepTree], dict[int, float]],
    factor: Callable[[StepTree], Floats],
    tree: StepTree,
) -> None:
    counts = TOKENS[: tree.steps]
    batch = make_tree_batch(tree, tokens=counts, token_entropy=ENTROPY[: tree.steps])
    if name == "aepo":
        of_tokens = np.repeat(ENTROPY[: tree.steps], counts.astype(int))
        batch = batch.with_tokens(counts.astype(np.int64), token_entropy=of_tokens)
    found = assign_credit(batch, make_tree_preset(name, **PARITY[name])).advantage * counts / counts.sum()
    assert found == pytest.approx(spread_on_tokens(tree, compare(tree), factor(tree)), abs=1e-6)
    plain = assign_credit(batch, make_tree_preset(name)).advantage * counts / counts.sum()
    assert plain != pytest.approx(found, abs=1e-3)


def test_segment_spo_leaves_out_the_tokens_of_the_vector() -> None:
    vector = VECTORS["spo_chain_segments"]
    batch = make_tree_batch(make_tree([-1, 0, 1], [None, None, 1.0])).with_tokens(
        np.array([4, 3, 1]), probability=np.array(vector["inputs"]["token_prob"])
    )
    backup = LeaveOutSure(threshold=float(str(PARITY["segment_spo"]["threshold"])))
    found = backup(batch, np.array(vector["segment_adv"]))
    assert found.advantages.tolist() == near(vector["masked_token_adv"])


def record(id: str, score: float, *probabilities: float) -> Trajectory:
    size = len(probabilities)
    logprobs = tuple(float(np.log(value)) for value in probabilities)
    sampled = Sampled(prompt_ids=(1,), ids=tuple(range(size)), logprobs=logprobs, versions=(("0", 0, size),))
    step = Step(turn=0, observation=Observation(messages=(), tools=()), action=Action(text="x"), sampled=sampled)
    return Trajectory(id=id, env="e", task="t", group="t", steps=(step,), score=score)


def test_recorded_tokens_are_left_out_by_their_probabilities() -> None:
    batch = join_trees([record("0", 1.0, 0.95, 0.5), record("1", 0.0, 0.2, 0.99)], {})
    (term,) = assign_credit(batch, make_tree_preset("segment_spo", **PARITY["segment_spo"])).terms
    assert term.token_advantage is not None
    assert term.token_advantage.tolist() == [0.0, 0.5, -0.5, 0.0]
    (term,) = assign_credit(batch, make_tree_preset("segment_spo")).terms
    assert (term.token_advantage, term.advantage.tolist()) == (None, [0.5, -0.5])


def test_tokens_of_unknown_probability_are_refused() -> None:
    batch = make_tree_batch(make_tree([-1], [1.0]))
    assert TokenProbabilities()(batch, Trackers())[0] is batch
    with pytest.raises(ConfigError, match="needs probability of every token, which nothing has computed"):
        assign_credit(batch, make_tree_preset("segment_spo", threshold=0.9))
    with pytest.raises(ConfigError, match=r"threshold is 0.* must be from"):
        make_tree_preset("segment_spo", threshold=0.0)


def test_ui_s1_compares_each_step_with_all_steps_of_the_task() -> None:
    """By hand, on the two episodes of docs/tree-credit.md: rewards of mean 5/6 and deviation 1/sqrt(6), and returns
    of the first two steps that are one deviation apart from each other's mean, times 1/sqrt(2)."""
    rewards, mismatch = [[1.0, 0.0, 1.0], [1.0, 1.0, 1.0]], [[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]]
    found = advantages(make_tree_preset("ui_s1", **PARITY["ui_s1"]), rewards, ["t", "t"], mismatch=mismatch)
    match, miss, half = 1 / 6 * 6**0.5, -5 / 6 * 6**0.5, 0.5**0.5
    expected = [[match - half, miss - half, match], [match + half, match + half, match]]
    assert [near_hand(row) for row in found] == [near_hand(row) for row in expected]
    alone = advantages(make_tree_preset("ui_s1", **PARITY["ui_s1"]), [[0.75]], ["t"], mismatch=[[0.0]])
    assert alone == [[pytest.approx(0.75, abs=1e-5)]]


def near_hand(row: list[float]) -> list[float]:
    """Rounded to what the 1e-6 beside each deviation leaves."""
    return [round(value, 4) for value in row]


def test_the_page_has_every_parity_setting() -> None:
    section = (
        (DOCS / "methods.md").read_text(encoding="utf-8").partition("\n## Presets on trees\n")[2].partition("\n## ")[0]
    )
    rows = re.findall(r"^\| `(\w+)` \| [^|]* \| ([^|]*) \|", section, re.MULTILINE)
    options = {name: tomllib.loads("\n".join(re.findall(r"`(\w+ = [^`]+)`", cell))) for name, cell in rows}
    assert options.pop("cleaner") == {"retries": 3}  # the controller's
    assert {name: found for name, found in options.items() if found} == {
        name: found for name, found in PARITY.items() if name in TREE_PRESETS
    }
    assert [name for name, _ in rows] == list(TREE_PRESETS)


def test_every_parity_setting_is_one_that_its_preset_has_and_differs_from() -> None:
    for name, options in PARITY.items():
        if name in TREE_PRESETS:
            assert name not in PRESETS
            assert make_tree_preset(name, **options) != make_tree_preset(name)
    assert set(PARITY) <= {*PRESETS, *TREE_PRESETS}
