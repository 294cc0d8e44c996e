"""Signals from records and models: the registry, its costs and errors, and the scale that presets bear.

What each method computes is tested in a file named after its module, against the vectors or by hand.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from signal_records import TASKS, TWO_STEPS, CountingModel
from strategies import FURTHER

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.explanation import explain_preset
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.registry import (
    GOLD_CHECKS,
    SIGNALS,
    add_signals,
    check_gold,
    check_needs,
    count_passes,
    needs_gold,
)
from gymcp.trainers.credit.signals.signal import SignalCost
from gymcp.trainers.credit.step_batch import StepBatch, batch_of, batch_of_columns
from gymcp.types import GoldTurn, Task


def test_every_signal_says_what_it_needs_and_what_it_costs() -> None:
    for name, signal in SIGNALS.items():
        assert signal.name == name
        assert signal.describes
        assert ("model" in signal.needs) == (signal.cost != SignalCost())


def test_costs_are_counted_by_steps_and_episodes() -> None:
    batch = batch_of([TWO_STEPS, replace(TWO_STEPS, id="1", trial=1)], TASKS)
    passes = {name: count_passes(make_preset(name), batch) for name in ("grpo", "empg", "igpo", "infopo", "capo")}
    assert passes == {"grpo": 0, "empg": 2, "igpo": 4, "infopo": 6, "capo": 0}


def test_the_declared_passes_over_steps_are_those_that_are_asked_for() -> None:
    batch = batch_of([TWO_STEPS], TASKS)
    for name, asked in (("igpo", 2), ("infopo", 1)):  # the last step has no observation
        model = CountingModel()
        add_signals(batch, make_preset(name), model)
        assert len(model.asked) == asked


def test_a_signal_is_explained_with_its_cost() -> None:
    assert any(line.endswith("the weights; forward passes: 1 a step") for line in explain_preset(make_preset("igpo")))


def test_an_unknown_signal_is_refused() -> None:
    preset = replace(make_preset("empg"), needs=frozenset({"entropy", "luck"}))
    with pytest.raises(ConfigError, match="mine: needs luck, and training can give critique, entropy, gold, "):
        check_needs("mine", preset)
    with pytest.raises(ConfigError, match="the preset needs the column luck"):
        assign_credit(batch_of_columns([[1.0]], ["g"], entropy=[[1.0]]), preset)


def test_a_preset_that_names_a_signal_needs_its_gold() -> None:
    assert needs_gold(replace(make_preset("grpo"), needs=frozenset({"gold_logprob"})))
    assert not needs_gold(make_preset("infopo"))


def test_the_gold_of_a_task_is_checked_before_it_is_played() -> None:
    two_turns = Task(id="shop", prompts=("", ""), gold=(GoldTurn(final_text="yes"), GoldTurn()))
    with pytest.raises(ConfigError, match="gold_logprob: task 'shop' has no gold for user turn 2"):
        check_gold(make_preset("igpo"), two_turns)
    with pytest.raises(ConfigError, match="critique: task 'shop' has no gold calls"):
        check_gold(make_preset("capo"), two_turns)
    check_gold(make_preset("infopo"), two_turns)
    for name in ("igpo", "capo"):
        check_gold(make_preset(name), TASKS["shop"])
    assert {name for name, signal in SIGNALS.items() if "gold" in signal.needs} == set(GOLD_CHECKS)


def test_a_signal_of_a_model_is_missing_without_one() -> None:
    with pytest.raises(ConfigError, match="the preset needs the column gold_logprob, which nothing has computed"):
        assign_credit(batch_of([TWO_STEPS], TASKS), make_preset("igpo"))


@pytest.mark.parametrize("name", ["epo", "igpo", "infopo", "capo", "poad", "spa", "hiper", "seeupo", "spo"])
def test_every_step_of_a_large_batch_has_a_finite_advantage(name: str) -> None:
    steps, episodes = 100_000, 5_000  # benchmarks/training.py times 1,000,000
    starts = np.arange(0, steps + 1, steps // episodes)
    draw, zeros = np.random.default_rng(0), np.zeros(steps)
    trajectory = np.repeat(np.arange(episodes), steps // episodes)
    columns = {"reward": zeros, "valid": zeros + 1, "calls": zeros, "errors": zeros, "tokens": zeros + 1}
    columns |= {signal: draw.random(steps) for signal in (*SIGNALS, *FURTHER)}
    keys = {"group": trajectory // 8, "trajectory": trajectory, "turn": np.arange(steps) - starts[trajectory]}
    columns["reward"][starts[1:] - 1] = draw.integers(0, 2, episodes)
    batch = StepBatch(starts=starts, columns=columns, keys=keys, tasks=tuple(map(str, range(episodes))))
    credit = assign_credit(batch, make_preset(name))
    assert len(credit.advantage) == steps
    assert np.isfinite(credit.advantage).all()
    assert credit.advantage.any()
