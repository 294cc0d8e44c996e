"""AEPO on trees: the loss against its vectors, the factor of each token's entropy, and its rollouts by hand."""

from __future__ import annotations

import json
from collections import Counter
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vectors import VECTORS, near

from gymcp.envs import load_env, load_spec
from gymcp.errors import ConfigError
from gymcp.store import TrajectoryStore
from gymcp.trainers import assign_credit, make_tree, make_tree_batch, make_tree_preset
from gymcp.trainers.credit.tree.entropy_factor import scale_by_entropy
from gymcp.trainers.learner.losses import policy_loss
from gymcp.trainers.recipe.entropy_branching import (
    branch_probability,
    count_first_episodes,
    count_in_a_row,
    measure_answer,
)
from gymcp.trainers.recipe.load import make_recipe
from gymcp.trainers.rollouts.curricula.explanation import explain_experience
from gymcp.trainers.rollouts.curricula.monitoring import share_branches
from gymcp.trainers.run.loop import train
from gymcp.trainers.run.metrics_log import read_metrics
from gymcp.trainers.settings.loss import Loss


def aepo_tensors(vector: dict[str, Any], advantage: list[list[float]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    ratio = torch.tensor(vector["inputs"]["ratio"], dtype=torch.float64)
    new = ratio.log().requires_grad_()
    mask = torch.tensor(vector["inputs"]["mask"], dtype=torch.float64)
    return new, torch.zeros_like(ratio), torch.tensor(advantage, dtype=torch.float64), mask


@pytest.mark.parametrize("case", ["fork_both_flags", "fork_clip_only", "plain_ppo", "high_entropy_clipped_token"])
def test_aepo_keeps_the_gradient_of_clipped_tokens(case: str) -> None:
    vector = VECTORS["aepo_loss"]
    inputs = vector["inputs"]
    expected = vector[case]["fork"] if case == "high_entropy_clipped_token" else vector[case]
    drawn = np.array(inputs["mask"]) == 1
    advantage = np.array(inputs["adv"])
    if case in ("fork_both_flags", "high_entropy_clipped_token"):
        entropy = np.array(vector[case].get("entropy", inputs["entropy"]))
        advantage[drawn] = scale_by_entropy(advantage[drawn], entropy[drawn], coefficient=inputs["ent_adv_coef"])
        assert advantage[drawn].tolist() == near(np.array(expected["A"])[drawn].tolist())
    low, high = inputs["clip"]
    loss = Loss(
        clip_low=low,
        clip_high=high,
        dual_clip=inputs["dual_clip"],
        keep_clipped_gradient=case != "plain_ppo",
    )
    new, old, given_, mask = aepo_tensors(vector, advantage.tolist())
    found = policy_loss(loss, new, old, given_, mask)
    (gradient,) = torch.autograd.grad(found, new)
    assert found.item() == near(expected["loss"])
    assert gradient.tolist() == near(expected["grad_wrt_logp"])


@pytest.mark.parametrize("case", ["arlarena_port", "high_entropy_clipped_token"])
def test_aepo_differs_from_arlarena_in_the_gradient_of_clipped_tokens_of_high_entropy(case: str) -> None:
    """That port drops it, and keeps that of low entropy alone: the opposite of the paper. The losses are equal."""
    vector = VECTORS["aepo_loss"]
    inputs, drawn = vector["inputs"], np.array(vector["inputs"]["mask"]) == 1
    port = vector[case].get("arlarena_port", vector[case])
    advantage, entropy = np.array(inputs["adv"]), np.array(vector[case].get("entropy", inputs["entropy"]))
    advantage[drawn] = scale_by_entropy(advantage[drawn], entropy[drawn], coefficient=inputs["ent_adv_coef"])
    low, high = inputs["clip"]
    loss = Loss(clip_low=low, clip_high=high, dual_clip=inputs["dual_clip"], keep_clipped_gradient=True)
    new, old, given_, mask = aepo_tensors(vector, advantage.tolist())
    found = policy_loss(loss, new, old, given_, mask)
    (gradient,) = torch.autograd.grad(found, new)
    assert found.item() == near(port["loss"])
    clipped = np.array(inputs["ratio"]) > 1 + high
    unsure = drawn & (advantage > 0) & clipped & (entropy > entropy[drawn].mean())
    assert np.where(unsure, 0.0, gradient.numpy()).tolist() == near(port["grad_wrt_logp"])
    assert unsure.any() == (case == "high_entropy_clipped_token")
    assert (gradient.numpy()[unsure] < 0).all()


def test_aepo_scales_each_token_of_a_step() -> None:
    """Two leaves, of two tokens and one; the entropies 1, 2, 3 have the deviations -1, 0, 1."""
    tree = make_tree([-1, -1], [1.0, 0.0])
    of_tokens = np.array([1.0, 2.0, 3.0])
    batch = make_tree_batch(tree, token_entropy=of_tokens[[0, 2]])
    batch = batch.with_tokens(np.array([2, 1]), token_entropy=of_tokens)
    (term,) = assign_credit(batch, make_tree_preset("aepo")).terms
    full = 0.5**0.5
    assert term.token_advantage == pytest.approx([0.8 * full, full, -1.2 * full], abs=1e-5)
    assert term.advantage == pytest.approx([0.9 * full, -1.2 * full], abs=1e-5)


def test_aepo_without_entropies_of_tokens_is_refused() -> None:
    batch = make_tree_batch(make_tree([-1], [1.0]))
    with pytest.raises(ConfigError, match="the preset needs the column token_entropy, which nothing has computed"):
        assign_credit(batch, make_tree_preset("aepo"))
    batch = make_tree_batch(make_tree([-1], [1.0]), token_entropy=np.ones(1)).with_tokens(np.array([2]))
    with pytest.raises(ConfigError, match="needs token_entropy of every token, which nothing has computed"):
        assign_credit(batch, make_tree_preset("aepo"))


def test_aepo_branches_less_after_branchings_in_a_row() -> None:
    """By hand (docs/tree-credit.md): 1 - 0.5 / f + 0.2 (1.5 - 1), with f = 1, 0.95, 0.9, 0.5 and 0."""
    found = [branch_probability(1.5, 1.0, in_a_row=count, penalty=0.05) for count in (0, 1, 2, 10, 20)]
    assert found == near([0.6, 0.573684, 0.544444, 0.1, 0.0])
    assert branch_probability(1.5, 1.0, in_a_row=9) == near(0.6)  # without a penalty it is ARPO's
    assert [count_in_a_row((1, 2, 4, 5), before=point) for point in (1, 2, 3, 4, 5, 6)] == [0, 1, 2, 0, 1, 2]


def test_aepo_begins_the_more_episodes_anew_the_less_sure_the_first_answer_is() -> None:
    """By hand (docs/tree-credit.md): 16 sigmoid(0.2) = 8.797, so 9 first episodes; seven of eight others branch."""
    assert count_first_episodes(1.0, [0.4, 0.8], 16) == 9
    assert [count_first_episodes(first, [0.0], 16) for first in (-99.0, 0.0, 2.0, 99.0)] == [2, 9, 12, 16]
    assert count_first_episodes(1.0, [], 16) == 9  # no answer to a result: half, plus 1
    assert share_branches(7, 8) == [(7, 2), (1, 1)]
    assert share_branches(14, 1) == [(1, 15)]
    assert share_branches(9, 4) == [(1, 4), (3, 3)]


ENV = Path(__file__).with_name("prompted_bank.py")
AGENT = Path(__file__).with_name("calling_agent.py")
TABLE: dict[str, Any] = {
    "env": str(ENV),
    "deterministic": True,
    "rollout": {
        "groups": 2, "episodes": 3, "controller": "aepo", "branching": {"max_episodes": 3, "base": 0.9},
        "max_tokens": 3, "max_turns": 8, "concurrency": 4, "slots": 4, "agent": f"{AGENT}:call_sometimes",
    },
    "credit": {"preset": "aepo"},
    "learn": {"iterations": 2},
    "evaluation": {"every": 0, "tasks": 1},
}  # fmt: skip


def test_a_run_with_aepo_splits_the_episodes_of_each_task_by_its_first_one(model: Path, tmp_path: Path) -> None:
    """Read from the record: nine leaves at most, first episodes by the entropies of the one that is played first."""
    recipe, env = make_recipe({**TABLE, "model": {"path": str(model)}}), load_env(load_spec(str(ENV)))
    train(recipe, env, tmp_path, resume=False)
    size = json.loads((model / "config.json").read_text())["vocab_size"]
    with TrajectoryStore.open(tmp_path) as store:
        trees = Counter((row.episode.task, row.episode.trial) for row in store.branches())
        ids = {(row.task, row.trial): row.id for row in store.summaries()}
        firsts: dict[tuple[str, int], list[int]] = {}
        roles: Counter[str] = Counter()  # roles of the messages that measured answers follow, but for the first answer
        for task, trial in sorted(ids):  # a task that is played again has the next nine numbers
            firsts.setdefault((task, trial - trial % 9), []).append(trial % 9)
        for (task, begin), trials in firsts.items():
            steps = store.load(ids[task, begin]).steps
            roles.update(step.observation.messages[0].role for step in steps[1:])
            entropies = [measure_answer(step, vocabulary=size, tokens=20) or 0.0 for step in steps]
            results = [step.observation.messages[0].role == "tool" for step in steps]
            first = count_first_episodes(entropies[0], [*compress(entropies[1:], results[1:])], 9)
            assert trials == [*range(first)]
            assert trees[task, begin] == 0
            limits = [limit for count, limit in share_branches(9 - first, first - 1) for _ in range(count)]
            assert all(trees[task, begin + trial] < limit for trial, limit in enumerate(limits, 1))
    rows = read_metrics(tmp_path)[1:]
    assert [row["branches"] > 0 for row in rows] == [True, True]
    assert roles.keys() == {"tool", "user"}
    ended = sum(row["outcome/scored"] + row.get("outcome/budget_exhausted", 0) for row in rows)
    assert ended == sum(map(len, firsts.values()))
    assert {count for row in rows for count in (row["allocation/fewest"], row["allocation/most"])} == {
        len(trials) for trials in firsts.values()
    }


def test_the_split_of_aepo_is_explained() -> None:
    lines = explain_experience(make_recipe(TABLE), load_env(load_spec(str(ENV))))
    assert lines[0].startswith("episodes: 9 of each task; after one that is measured, 9 sigmoid(0.5 (H - mean H_t))")
