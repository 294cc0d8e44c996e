"""Base methods and losses for other weights: advantages, losses and gradients computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import advantages, assign_credit
from gymcp.trainers.credit.base.rules import RankFailures
from gymcp.trainers.credit.presets import PRESETS, make_preset
from gymcp.trainers.credit.shapers import Trackers
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.learner.losses import policy_loss
from gymcp.trainers.settings.loss import Loss, TruncatedWeight

HALF = [[1.0], [0.0, 0.0], [0.0], [1.0]]
"""Four episodes of a task; the mean is 1/2, the deviation sqrt(1/3)."""


@pytest.mark.parametrize("name", ["dapo", "tapo", "gspo", "cispo", "dart", "decoupled_ppo"])
def test_presets_that_change_the_loss_compare_as_grpo_does(name: str) -> None:
    found = advantages(make_preset(name), [*HALF, [0.0]], ["g"] * 4 + ["h"])
    assert found == advantages(make_preset("grpo"), [*HALF, [0.0]], ["g"] * 4 + ["h"])
    assert found[0][0] == pytest.approx(0.5 / (math.sqrt(1 / 3) + 1e-6), abs=1e-9)


def test_the_losses_are_those_of_the_papers() -> None:
    losses = {name: make_preset(name).loss for name in PRESETS if name not in ("gdpo",)}
    assert losses["dapo"] == losses["tapo"] == Loss(clip_low=0.2, clip_high=0.28, dual_clip=10.0)
    assert losses["gspo"] == Loss(kind="gspo", clip_low=3e-4, clip_high=4e-4, dual_clip=None)
    assert losses["cispo"] == Loss(kind="cispo", clip_low=1.0, clip_high=0.28, dual_clip=None)
    assert losses["dart"].weight == TruncatedWeight(cap=1.0)
    assert losses["decoupled_ppo"].decoupled
    assert {losses[name].kind for name in ("opmd", "asymre", "expert_iteration")} == {"likelihood"}


def test_dapo_leaves_out_groups_that_all_scored_alike() -> None:
    batch = batch_of_columns([*HALF, [1.0], [1.0]], [*"gggg", "h", "h"])
    credit = assign_credit(batch, make_preset("dapo"))
    assert (credit.dropped, len(credit.batch.tasks)) == (2, 4)


def gradient_of(loss: Loss, advantage: list[float], ratio: list[float]) -> list[float]:
    """Gradient of the loss of one row by the log-probability of each of its tokens; p_old is 1/4 of each."""
    old = torch.full((1, len(ratio)), 0.25, dtype=torch.float64).log()
    new = (old + torch.tensor([ratio], dtype=torch.float64).log()).requires_grad_()
    given = torch.tensor([advantage], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(policy_loss(loss, new, old, given, torch.ones_like(given)), new)
    values: list[float] = gradient[0].tolist()
    return values


def test_cispo_bounds_the_weight_from_above_only() -> None:
    # -min(r, 1.28) A / 3 tokens: no token loses its gradient, however small or large its ratio
    found = gradient_of(make_preset("cispo").loss, [1.0, 1.0, -1.0], [2.0, 0.1, 0.5])
    assert found == pytest.approx([-1.28 / 3 * 3 / 3, -0.1 / 3, 0.5 / 3], abs=1e-6)


def test_dapo_clips_higher_upwards() -> None:
    # 1.25 lies within 1.28, 1.3 above it; 0.75 below 0.8 counts for a positive advantage alone
    assert gradient_of(make_preset("dapo").loss, [1.0, 1.0, 1.0, -1.0], [1.25, 1.3, 0.75, 0.75]) == pytest.approx(
        [-1.25 / 4, 0.0, -0.75 / 4, 0.0], abs=1e-6
    )


@pytest.mark.parametrize("name", ["opmd", "asymre", "expert_iteration"])
def test_losses_without_ratios_do_not_ask_who_drew_the_tokens(name: str) -> None:
    # d/dlogp of -A log p, averaged over the tokens
    assert gradient_of(make_preset(name).loss, [0.5, -0.25], [3.0, 0.01]) == pytest.approx([-0.25, 0.125], abs=1e-6)


def test_opmd_divides_by_one_plus_tau() -> None:
    assert advantages(make_preset("opmd", tau=3.0), HALF, "gggg") == [[0.125], [-0.125, -0.125], [-0.125], [0.125]]


def test_opmd_with_a_soft_mean_matches_a_calculation_by_hand() -> None:
    # tau log((e^(1/tau) + e^0) / 2) with tau 1/2: log((e^2 + 1) / 2) / 2 = .7168904; all of it over 1 + tau
    soft = 0.5 * math.log((math.exp(2.0) + 1) / 2)
    assert soft == pytest.approx(0.7168904, abs=1e-6)
    preset = make_preset("opmd", tau=0.5, baseline="log_mean_exp")
    found = advantages(preset, [[1.0], [0.0, 0.0], [0.5]], "ggh")
    assert found == [pytest.approx(row, abs=1e-9) for row in ([(1 - soft) / 1.5], [-soft / 1.5] * 2, [0.0])]


def test_the_soft_mean_lies_between_the_mean_and_the_best() -> None:
    def best_of(tau: float) -> float:
        preset = make_preset("opmd", tau=tau, baseline="log_mean_exp")
        return (1 + tau) * advantages(preset, [[1.0], [0.0]], "gg")[0][0]

    assert best_of(1e4) == pytest.approx(0.5, abs=1e-4)
    assert best_of(1e-3) == pytest.approx(0.0, abs=1e-3)  # exp(1000) does not overflow
    assert best_of(1e-3) < best_of(1.0) < best_of(1e4)


def test_asymre_raises_every_advantage_by_what_the_baseline_is_lowered() -> None:
    assert advantages(make_preset("asymre"), HALF, "gggg") == [
        pytest.approx(row, abs=1e-9) for row in ([0.6], [-0.4, -0.4], [-0.4], [0.6])
    ]
    assert advantages(make_preset("asymre", shift=0.0), HALF, "gggg") == [[0.5], [-0.5, -0.5], [-0.5], [0.5]]


def test_below_the_mean_asymre_keeps_every_answer_and_above_it_one_is_left() -> None:
    """The bandit of the paper: three answers drawn evenly by other weights, with rewards 1, .8 and 0.

    Gradient ascent on E[(r - V) log p] over the softmax of three logits, in expectation.
    """

    def learn(shift: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        rewards = np.array([1.0, 0.8, 0.0])
        pushes = (rewards - (rewards.mean() + shift)) / 3
        logits = np.zeros(3)
        for _ in range(20_000):
            p = np.exp(logits - logits.max())
            p /= p.sum()
            logits += 0.5 * (pushes - pushes.sum() * p)
        return np.asarray(p)

    assert learn(-0.7) == pytest.approx(np.array([1.1, 0.9, 0.1]) / 2.1, abs=1e-3)  # proportional to (r - V)
    assert learn(0.0).max() > 0.99


def test_expert_iteration_learns_solved_episodes_alone() -> None:
    credit = assign_credit(batch_of_columns([[0.0, 1.0], [0.5], [1.0]], "ggh"), make_preset("expert_iteration"))
    assert (credit.advantage.tolist(), credit.dropped) == ([1.0, 1.0, 1.0], 1)
    assert advantages(make_preset("expert_iteration"), [[0.0, 1.0], [0.5]], "gg") == [[1.0, 1.0], [0.0]]


def test_failures_are_ranked_by_entropy_below_every_success() -> None:
    batch = batch_of_columns(
        [[1.0], [0.0, 0.0], [0.0], [0.0], [0.0]],
        "ggggh",
        entropy=[[0.1], [0.25, 0.5], [0.9], [0.375], [0.5]],
        tokens=[[1.0], [1.0, 1.0], [1.0], [5.0], [1.0]],
    )
    shaped, _ = RankFailures(scale=0.3)(batch, Trackers())
    # means .375, .9, .375 of the failures: the first and the third share ranks 1 and 2 of 3; the last is alone
    assert shaped.totals(shaped.column("ranked")).tolist() == pytest.approx([1.0, 0.15, 0.0, 0.15, 0.0], abs=1e-9)
    values = np.array([1.0, 0.15, 0.0, 0.15])
    expected = (values - values.mean()) / (values.std(ddof=1) + 1e-6)
    credit = assign_credit(batch, make_preset("r3", scale=0.3))
    assert credit.advantage[[0, 1, 3, 4]].tolist() == pytest.approx(expected.tolist(), abs=1e-6)


def test_a_ranked_failure_keeps_what_earlier_steps_earned() -> None:
    batch = batch_of_columns([[0.5, 0.0], [0.0, 0.5]], "gg", entropy=[[0.1, 0.1], [0.9, 0.9]])
    shaped, _ = RankFailures(scale=0.2)(batch, Trackers())
    # half of a score is missing, and the surer one of two has rank 1/2: .5 + .2 * .5 * .5
    assert shaped.totals(shaped.column("ranked")).tolist() == pytest.approx([0.55, 0.5], abs=1e-9)


def test_solved_episodes_that_were_unlikely_get_a_bonus_within_its_bound() -> None:
    """Mean log-probabilities of the solved ones: -.6, -1 and -.2; of the failed one -1.4; their mean is -.8."""
    batch = batch_of_columns(
        [[1.0], [0.0, 1.0], [0.0], [1.0], [1.0]],
        "ggggh",
        logprob=[[-0.6], [-1.5, -0.5], [-1.4], [-0.2], [-9.0]],
        tokens=[[1.0], [1.0, 1.0], [1.0], [4.0], [1.0]],
    )
    plain = assign_credit(batch, make_preset("grpo")).advantage
    assert plain[0] == pytest.approx(0.25 / (0.5 + 1e-6), abs=1e-9)
    bonus = min(2.5 * (1 - math.exp(-0.2)), 0.5 * 0.5)  # the second: .4532, more than half of its advantage
    found = assign_credit(batch, make_preset("xrpo")).advantage
    assert found == pytest.approx(plain + np.array([0.0, bonus, bonus, 0.0, 0.0, 0.0]), abs=1e-6)
    little = assign_credit(batch, make_preset("xrpo", novelty=0.5)).advantage
    gain = 0.5 * (1 - math.exp(-0.2))  # .0906
    assert little == pytest.approx(plain + np.array([0.0, gain, gain, 0.0, 0.0, 0.0]), abs=1e-6)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("opmd", {"tau": 0.0}, "tau is 0.0; it must not be less than 1e-09"),
        ("opmd", {"baseline": "median"}, "baseline is 'median'; have 'mean', 'log_mean_exp'"),
        ("r3", {"scale": 2.0}, "scale is 2.0; it must be from 0 to 1"),
        ("xrpo", {"novelty": -1.0}, "novelty is -1.0; it must not be negative"),
        ("dapo", {"shift": 1.0}, "no option 'shift'"),
    ],
)
def test_impossible_options_are_refused(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_preset(name, **options)
