"""Comparison of steps of one index, when the policy decides when to stop: estimates against the exact gradient.

The world: at each of three steps the policy goes on, which pays 1, or stops, which pays 1.2, each with probability 1/2.
Going on is better at every step. The gradient of the expected score by the logit of going on, and the expectation of
each estimate, are computed over all episodes and over all groups of episodes.
"""

from __future__ import annotations

import itertools
import math

import pytest

from gymcp.trainers.credit.cautions import find_cautions
from gymcp.trainers.credit.estimators import AdvantageTerm, StdScale, estimate_advantage
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.presets import LossTerm, Preset, make_preset
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.settings.loss import Loss

GO, STOP = (1.0, 0.5), (1.2, -0.5)
"""Reward of an action, and derivative of its log-probability by the logit of going on, at probability 1/2."""
EPISODES = [(0.5**3, [GO] * 3), *((0.5 ** (went + 1), [GO] * went + [STOP]) for went in range(3))]
"""(probability, actions) of each episode."""

BY_INDEX = AdvantageTerm(signal="reward", key=("group", "turn"), unit="step", returns="discounted")
OTHERS = AdvantageTerm(
    signal="reward", key=("group", "turn"), unit="step", returns="discounted", centre="leave_one_out", singleton="raw"
)
SUMMED = AdvantageTerm(
    signal="reward", key=("group", "turn"), unit="step", returns="discounted", order="norm_then_return"
)
SCALED = AdvantageTerm(signal="reward", key=("group", "turn"), unit="step", returns="discounted", scale=StdScale())


def exact_gradient() -> float:
    return sum(share * sum(pay for pay, _ in steps) * sum(slope for _, slope in steps) for share, steps in EPISODES)


def expected_estimate(term: AdvantageTerm, episodes: int) -> float:
    """Expectation of the policy gradient that the term estimates from one group of so many episodes."""
    total = 0.0
    for group in itertools.product(EPISODES, repeat=episodes):
        batch = batch_of_columns([[pay for pay, _ in steps] for _, steps in group], ["g"] * episodes)
        slopes = [slope for _, steps in group for _, slope in steps]
        likely = math.prod(share for share, _ in group)
        total += likely * float(estimate_advantage(term, batch) @ slopes) / episodes
    return total


def preset_of(term: AdvantageTerm) -> Preset:
    return Preset(loss_terms=(LossTerm(advantage_terms=(term,)),), loss=Loss())


@pytest.mark.parametrize("episodes", [2, 4])
def test_the_mean_of_the_others_gives_the_exact_gradient(episodes: int) -> None:
    assert exact_gradient() == pytest.approx(0.4625)
    assert expected_estimate(OTHERS, episodes) == pytest.approx(0.4625)
    assert find_cautions(preset_of(OTHERS)) == []


def test_comparison_before_summation_teaches_to_stop() -> None:
    assert expected_estimate(SUMMED, 4) == pytest.approx(-0.0547, abs=1e-4)
    (caution,) = find_cautions(preset_of(SUMMED))
    assert caution.startswith("A1 subtracts a mean for every step that is still to come")
    assert "biased, even in its sign" in caution


def test_comparison_with_oneself_makes_late_steps_count_less() -> None:
    assert expected_estimate(BY_INDEX, 4) == pytest.approx(0.3277, abs=1e-4)
    assert expected_estimate(SCALED, 4) == pytest.approx(0.4117, abs=1e-4)
    for term in (BY_INDEX, SCALED):
        assert "biased in its size" in find_cautions(preset_of(term))[0]


def test_matchtir_has_an_unbiased_variant_and_says_so() -> None:
    flagged, unbiased = make_preset("matchtir"), make_preset("matchtir", unbiased=True)
    assert [line for line in explain_preset(flagged) if line.startswith("caution: A2 compares a step with the steps")]
    assert find_cautions(unbiased) == []
    assert find_cautions(make_preset("matchtir", anchor=["group", "state"])) == []
    assert len(find_cautions(make_preset("gigpo", anchor=["group", "turn"]))) == 1
    first, second = unbiased.advantage_terms
    assert {term.centre for term in (first, second)} == {"leave_one_out"}
    assert (first.scale, second.scale, second.singleton) == (None, None, "raw")


def test_no_preset_but_matchtir_compares_steps_by_their_index() -> None:
    named = ("gigpo", "eapo", "rebn", "reinforce_pp", "flow_grpo", "ppo", "hdpo")
    assert [name for name in (*named, "matchtir") if find_cautions(make_preset(name))] == ["matchtir"]
