"""InfoPO: log-probability of the next action with and without the observation, against vector and hand computation."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from signal_records import BUY, FIND, NAN, TASKS, TWO_STEPS, CountingModel, make_record, make_step
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import advantages
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.observation_gain import (
    ObservationGain,
    information_gate,
    magnitude_ratio,
    mask_observation,
    turn_gain,
)
from gymcp.trainers.credit.signals.registry import SIGNALS, add_signals
from gymcp.trainers.credit.step_batch import batch_of


def test_infopo_gain_gate_and_ratio() -> None:
    vector = VECTORS["infopo"]
    gain = vector["gain"]
    found = turn_gain(np.array(gain["next_action_logp_with_obs"]), np.array(gain["next_action_logp_obs_masked"]))
    assert found == near(gain["turn_gain"])
    for row in vector["gate_table"]:
        assert information_gate(np.array([row["group_std"]])).tolist() == near([row["gate"]])
    for row in vector["magnitude_ratio_examples"]:
        ratio = magnitude_ratio(np.array([row["std_out"]]), np.array([row["std_int"]]))
        assert ratio.tolist() == near([row["ratio"]])


def test_an_observation_is_masked_between_two_actions_of_one_context() -> None:
    before, after = TWO_STEPS.steps[0].sampled, TWO_STEPS.steps[1].sampled
    assert before is not None
    assert after is not None
    assert mask_observation(before, after, (70, 71), frozenset({1})) == (2, 4, 6, 1, 70, 71, 71, 1)
    assert mask_observation(before, after, (70, 71), frozenset()) == (2, 4, 6, 70, 71, 71, 71, 71)
    assert mask_observation(before, replace(after, prompt_ids=(2, 5, 6, 7)), (70,), frozenset()) is None
    assert mask_observation(before, replace(after, prompt_ids=(2, 4, 6)), (70,), frozenset()) is None


def test_the_gain_belongs_to_the_action_that_led_to_the_observation() -> None:
    batch = add_signals(batch_of([TWO_STEPS]), make_preset("infopo"), CountingModel())
    true, masked = -0.1 * np.mean([2, 4, 6, 1, 8, 8, 8, 1]), -0.1 * np.mean([2, 4, 6, 1, 70, 71, 71, 1])
    assert batch.column("observation_gain").tolist() == pytest.approx([true - masked, NAN], nan_ok=True)


def test_information_counts_if_all_outcomes_are_equal() -> None:
    """Gains 0.3 and 0.1: +-1/sqrt 2; gate 1/2; ratio 1, so each counts 0.1 * 0.5 of that."""
    gains = [[0.3, NAN], [0.1, NAN]]
    alike = advantages(make_preset("infopo"), [[0.0, 0.0], [0.0, 0.0]], "gg", observation_gain=gains)
    share = 0.05 * 0.1 / (math.sqrt(0.02) + 1e-6)
    assert alike == [near([share, 0.0]), near([-share, 0.0])]
    apart = advantages(make_preset("infopo"), [[0.0, 1.0], [0.0, 0.0]], "gg", observation_gain=gains)
    plain = advantages(make_preset("grpo"), [[0.0, 1.0], [0.0, 0.0]], "gg")
    assert apart == [pytest.approx(row, abs=1e-6) for row in plain]


def test_an_observation_cannot_be_replaced_by_nothing() -> None:
    with pytest.raises(ConfigError, match="infopo: placeholder is empty"):
        make_preset("infopo", placeholder="")


def test_a_signal_without_tokens_says_so() -> None:
    bare = make_record(make_step(FIND), make_step(BUY))
    for signal in (SIGNALS["gold_logprob"], ObservationGain()):
        with pytest.raises(ConfigError, match=f"{signal.name}: a step of e/shop has no tokens"):
            signal.compute(batch_of([bare], TASKS), CountingModel())
