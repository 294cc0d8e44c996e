"""AEPO on trees: the loss against its vectors, and the factor of each token's entropy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers import assign_credit, make_tree, make_tree_batch, make_tree_preset
from gymcp.trainers.credit.tree.entropy_factor import scale_by_entropy
from gymcp.trainers.learner.losses import policy_loss
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
