"""The signal of a preset's gradient, against a chain whose policy and gradients are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from chain import Played, play, true_ratios

from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.diagnosis.gradient_factors import NOT_MEASURED, gradient_factors, presets_to_measure
from gymcp.trainers.credit.diagnosis.signal import SignalEstimate, estimate_signals
from gymcp.trainers.credit.presets import PRESETS as ALL_PRESETS
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.learner.losses import Denominators, policy_loss

PRESETS = {
    "grpo": make_preset("grpo"),
    "loop": make_preset("loop"),
    "gigpo": make_preset("gigpo", norm="mean", step_weight=1.0, gamma=0.95),
    "mean_std": make_preset("gigpo", step_weight=1.0, gamma=0.95),
    "strong": make_preset("gigpo"),
}


@pytest.fixture(scope="module")
def played() -> Played:
    return play(groups=250, episodes=16, seed=7)


@pytest.fixture(scope="module")
def estimated(played: Played) -> SignalEstimate:
    return estimate(played)


def estimate(played: Played) -> SignalEstimate:
    factors = {name: gradient_factors(played.batch, preset) for name, preset in PRESETS.items()}
    return estimate_signals(played.batch, factors, played.actions)


def test_the_estimate_finds_the_true_ratios_of_a_chain(played: Played, estimated: SignalEstimate) -> None:
    true, found = true_ratios(played, PRESETS), estimated
    assert found.steps_used > 0.9
    ratios = {each.preset: each.ratio for each in found.signals}
    for name in PRESETS:
        assert ratios[name] == pytest.approx(true[name], rel=0.25), (true, ratios)
    assert ratios["loop"] < ratios["grpo"] < ratios["strong"], "and their order"
    assert {each.preset for each in found.signals if each.low > 1} >= {"strong"}
    assert {each.preset for each in found.signals if each.high < 1} == {"loop"}


def test_the_graph_of_states_gives_more_signal_than_states_alone(played: Played) -> None:
    true = true_ratios(played, {name: make_preset(name) for name in ("grpo", "hgpo", "graphgpo", "g2po", "gagpo")})
    rounded = {name: round(ratio, 1) for name, ratio in true.items()}
    assert rounded == {"grpo": 1.0, "hgpo": 1.1, "graphgpo": 2.4, "g2po": 1.4, "gagpo": 1.8}, "as docs/credit.md has it"


def test_presets_on_graphs_are_not_estimated_since_the_estimate_is_too_high(played: Played) -> None:
    presets = {name: make_preset(name) for name in ("grpo", "g2po")}
    factors = {name: gradient_factors(played.batch, preset) for name, preset in presets.items()}
    found = {each.preset: each for each in estimate_signals(played.batch, factors, played.actions).signals}
    assert found["g2po"].low > 2 * true_ratios(played, presets)["g2po"]
    assert not presets_to_measure(played.batch).keys() & NOT_MEASURED
    assert ALL_PRESETS.keys() >= NOT_MEASURED


def test_few_episodes_give_a_wide_interval_around_the_same_ratio(estimated: SignalEstimate) -> None:
    wide = {each.preset: each for each in estimate(play(groups=30, episodes=16, seed=1)).signals}
    narrow = {each.preset: each for each in estimated.signals}
    for name in ("loop", "gigpo", "mean_std", "strong"):
        assert wide[name].high - wide[name].low > 1.5 * (narrow[name].high - narrow[name].low)
        assert wide[name].low < narrow[name].ratio < wide[name].high


def test_scores_by_chance_have_no_signal() -> None:
    found = estimate(play(groups=60, episodes=8, seed=2, luck=True))
    assert (found.signals, found.missing) == (
        (),
        "the gradient of grpo cannot be told from noise: record more episodes",
    )


def test_a_preset_without_a_gradient_has_no_signal(played: Played) -> None:
    factors = {"grpo": gradient_factors(played.batch, PRESETS["grpo"]), "none": np.zeros(len(played.actions))}
    found = {each.preset: each for each in estimate_signals(played.batch, factors, played.actions).signals}
    assert (found["none"].ratio, found["none"].high, found["grpo"].ratio) == (0.0, 0.0, 1.0)


def test_few_groups_have_no_interval() -> None:
    found = estimate(play(groups=1, episodes=16, seed=3))
    assert found.signals == ()
    assert found.missing == "1 group has a state that enough episodes visited, and it takes 5"


def test_states_of_a_single_episode_have_no_signal() -> None:
    batch = batch_of_columns([[0.0, 1.0], [0.0, 0.0]] * 10, [n // 2 for n in range(20)])
    found = estimate(Played(batch=batch, places=np.arange(40), actions=np.zeros(40, np.int64)))
    assert (found.signals, found.steps_used, found.missing.split(" have ")[0]) == ((), 0.0, "0 groups")


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gigpo", "hdpo", "eapo", "flow_grpo", "otc"])
def test_a_factor_is_the_gradient_of_the_loss_that_is_trained(name: str) -> None:
    preset = make_preset(name)
    rewards, tokens = [[0.0, 1.0], [0.0, 0.0, 0.0], [1.0], [0.0]], [[2, 1], [1, 3, 2], [4], [1]]
    calls = [[1, 1], [1, 0, 1], [1], [2]]
    batch = batch_of_columns(rewards, ["a", "a", "b", "b"], [[0, 1], [0, 1, 1], [2], [2]], tokens=tokens, calls=calls)
    credit, counts = assign_credit(batch, preset), [count for row in tokens for count in row]
    steps, ends = range(len(counts)), np.cumsum([len(row) for row in tokens])
    episodes = [list(steps[end - len(row) : end]) for row, end in zip(tokens, ends, strict=True)]
    lines = [[step] for step in steps] if preset.loss.sequence == "step" else episodes
    new = torch.zeros(len(lines), max(map(sum, tokens)), dtype=torch.float64, requires_grad=True)
    total = new.new_zeros(())
    first_tokens: dict[int, tuple[int, int]] = {}
    for term in credit.terms:
        advantages, mask = torch.zeros_like(new).detach(), torch.zeros_like(new).detach()
        for number, line in enumerate(lines):
            for place, step in enumerate(each for each in line for _ in range(counts[each])):
                first_tokens.setdefault(step, (number, place))
                advantages[number, place], mask[number, place] = term.advantage[step], float(term.counted[step])
        whole = Denominators(tokens=float(mask.sum()), sequences=float((mask.sum(-1) > 0).sum()))
        loss = policy_loss(preset.loss, new, new.detach(), advantages, mask, denominators=whole)
        total = total + term.weight * loss
    (of_token,) = torch.autograd.grad(total, new)
    gradient = [-float(of_token[first_tokens[step]]) for step in steps]
    assert gradient_factors(batch, preset).tolist() == pytest.approx(gradient, abs=1e-12)
