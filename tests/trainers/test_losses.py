"""Policy losses against the official functions, by hand, and in pieces."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers.learner.losses import (
    Denominators,
    aggregate,
    count_all_rows,
    importance_weights,
    kl_estimate,
    policy_loss,
    ratios,
)
from gymcp.trainers.settings.loss import BandWeight, Loss, TruncatedWeight

INPUTS = VECTORS["policy_losses"]["inputs"]
PPO: dict[str, Any] = {"kind": "ppo", "clip_low": 0.2, "clip_high": 0.28, "dual_clip": 3.0}
LOSSES = {
    **{
        # verl divides the sum by the length 3 alone; gymcp, like the paper, by the number of sequences too: 2 * 1.5
        f"ppo_clip_0.2_0.28_dual3|{way}": Loss(**PPO, aggregation=way, constant_length=1.5)
        for way in ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    },
    "gspo_3e-4_4e-4|seq-mean-token-mean (forced)": Loss(kind="gspo", clip_low=3e-4, clip_high=4e-4),
    "cispo_0.2_0.28|token-mean": Loss(kind="cispo"),
    "sapo_1.0_1.05|seq-mean-token-mean (forced)": Loss(kind="sapo", aggregation="seq-mean-token-mean"),
}


def tensors() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(new, old, advantages, mask), [2, 3] each."""
    ratio = torch.tensor(INPUTS["ratio"], dtype=torch.float64)
    old = torch.full_like(ratio, INPUTS["old_prob"]).log()
    new = (old + ratio.log()).requires_grad_()
    advantages, mask = (torch.tensor(INPUTS[name], dtype=torch.float64) for name in ("adv", "mask"))
    return new, old, advantages, mask


def test_every_loss_of_the_vectors_is_one_of_ours() -> None:
    assert LOSSES.keys() == VECTORS["policy_losses"]["results"].keys()


@pytest.mark.parametrize("name", LOSSES)
def test_losses_and_their_gradients_match_the_official_functions(name: str) -> None:
    expected = VECTORS["policy_losses"]["results"][name]
    new, old, advantages, mask = tensors()
    loss = policy_loss(LOSSES[name], new, old, advantages, mask)
    (gradient,) = torch.autograd.grad(loss, new)
    assert loss.item() == near(expected["loss"])
    assert gradient.tolist() == near(expected["grad_wrt_logp"])


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_micro_batches_with_common_denominators_add_up_to_the_batch(loss: Loss) -> None:
    new, old, advantages, mask = tensors()
    whole = policy_loss(loss, new, old, advantages, mask)
    pieces = [
        policy_loss(
            loss, new[i : i + 1], old[i : i + 1], advantages[i : i + 1], mask[i : i + 1],
            denominators=count_all_rows(mask),
        )
        for i in range(2)
    ]  # fmt: skip
    assert sum(piece.item() for piece in pieces) == pytest.approx(whole.item(), abs=1e-12)


@pytest.mark.parametrize("loss", LOSSES.values(), ids=list(LOSSES))
def test_padding_changes_nothing(loss: Loss) -> None:
    new, old, advantages, mask = tensors()
    wide = [torch.nn.functional.pad(tensor, (0, 4)) for tensor in (new, old, advantages, mask)]
    plain = policy_loss(loss, new, old, advantages, mask)
    assert policy_loss(loss, *wide).item() == pytest.approx(plain.item(), abs=1e-12)


def test_a_row_without_tokens_is_a_sequence_unless_the_denominators_leave_it_out() -> None:
    loss = Loss(kind="likelihood", aggregation="seq-mean-token-sum")
    losses, mask = torch.ones(2, 2), torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    assert count_all_rows(mask) == Denominators(tokens=2.0, sequences=2.0)
    assert aggregate(loss, losses, mask).item() == 1.0
    assert aggregate(loss, losses, mask, Denominators(tokens=2.0, sequences=1.0)).item() == 2.0


def test_importance_weights_match_the_official_functions() -> None:
    vector = VECTORS["truncated_is"]
    trainer, rollout = (
        torch.tensor([vector["inputs"][name]]).double().log() for name in ("trainer_prob", "rollout_prob")
    )
    mask = torch.ones_like(trainer)
    change = trainer - rollout
    assert importance_weights(TruncatedWeight(cap=2.0), change, mask)[0].tolist() == near(vector["token_tis_C2"])
    sequence = importance_weights(TruncatedWeight(cap=2.0, level="sequence"), change, mask)
    assert sequence[0].tolist() == near([vector["seq_tis_C2"]] * 4)
    assert importance_weights(BandWeight(), change, mask)[0].tolist() == near(vector["icepop_0_5_2_0"])
    plain = importance_weights(TruncatedWeight(cap=math.inf), change, mask)
    assert plain[0].tolist() == near(vector["ratio"])
    whole = importance_weights(TruncatedWeight(cap=math.inf, level="sequence"), change, mask)
    assert whole[0].tolist() == near([vector["seq_ratio"]] * 4)
    assert ratios(Loss(kind="gspo"), trainer, rollout, mask).tolist() == [near([vector["geo_mean_ratio"]] * 4)]
    # k3 = r - 1 + k1, token by token
    divergence = kl_estimate(rollout, trainer)
    assert divergence.mean().item() == near(vector["k3_seq_mean"])
    assert (divergence - plain + 1).mean().item() == near(vector["k1_seq_mean"])


def test_importance_weights_carry_no_gradient() -> None:
    old = torch.tensor([[-1.0]], requires_grad=True)
    new = torch.tensor([[-1.0]], requires_grad=True)
    rollout, ones = torch.tensor([[-1.5]]), torch.ones(1, 1)
    loss = policy_loss(Loss(weight=TruncatedWeight(cap=10.0)), new, old, ones, ones, rollout=rollout)
    (gradient,) = torch.autograd.grad(loss, new)
    assert gradient.item() == pytest.approx(-(2.718281828459045**0.5), abs=1e-6)


def test_the_decoupled_loss_matches_a_calculation_by_hand() -> None:
    """p_new .6, p_prox .5, p_behave .25: ratio 1.2 within the clip, weight 2. A token of weight 8 is left out."""
    new, old, rollout = (torch.tensor([each]).log() for each in ([0.6, 0.8], [0.5, 0.8], [0.25, 0.1]))
    ones = torch.ones(1, 2)
    loss = policy_loss(Loss(decoupled=True), new, old, ones, ones, rollout=rollout)
    assert loss.item() == pytest.approx(-(1.2 * 2.0 + 0.0) / 2)


def test_the_kl_estimate_is_zero_only_if_both_policies_agree() -> None:
    new, reference = torch.tensor([0.5, 0.25, 0.5]).log(), torch.tensor([0.5, 0.5, 0.25]).log()
    assert kl_estimate(new, reference).tolist() == pytest.approx([0.0, 2 - 1 - 0.693147, 0.5 - 1 + 0.693147], abs=1e-6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"aggregation": "seq-mean-token-sum-norm"}, "constant_length"),
        ({"clip_low": -0.1}, "clips must be positive"),
        ({"dual_clip": 0.5}, "dual_clip above 1"),
        ({"kind": "sapo", "sharpness_up": 0.0}, "sharpness_up and sharpness_down must be above 0"),
    ],
)
def test_an_impossible_loss_is_refused(wrong: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Loss(**wrong)
