"""CAPO: a scripted critic that finds wrong steps."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from chain import play, true_ratios
from signal_records import BUY, FIND, SELL, TASKS, make_record, make_step
from vectors import near

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import assign_credit
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.critique import Critique, find_wrong_steps
from gymcp.trainers.credit.step_batch import batch_of, batch_of_columns
from gymcp.types import Task

MANY = [
    make_record(make_step(FIND), make_step(SELL), make_step(BUY), make_step(FIND), make_step(), trial=n)
    for n in range(400)
]


def test_the_critic_knows_the_gold_calls() -> None:
    unusable = make_record(make_step(valid=False), make_step(FIND))
    assert find_wrong_steps(MANY[0], TASKS["shop"]).tolist() == [False, True, False, True, False]
    assert find_wrong_steps(unusable, TASKS["shop"]).tolist() == [True, False]


def test_the_critic_errs_at_its_rate_and_always_in_the_same_steps() -> None:
    truth = Critique().compute(batch_of(MANY, TASKS), None).steps["critique"]
    said = Critique(error_rate=0.2).compute(batch_of(MANY, TASKS), None).steps["critique"]
    assert abs(float((said != truth).mean()) - 0.2) < 4 * math.sqrt(0.2 * 0.8 / len(truth))
    shuffled = Critique(error_rate=0.2).compute(batch_of(MANY[200:], TASKS), None).steps["critique"]
    assert shuffled.tolist() == said[1000:].tolist()
    other = Critique(error_rate=0.2, seed=1).compute(batch_of(MANY, TASKS), None).steps["critique"]
    assert (other != said).any()


def test_capo_blames_the_wrong_steps_of_solved_episodes_too() -> None:
    """Rewards 2, 1 and 0, 0: mean 0.75, deviation sqrt(2.75 / 3)."""
    solved = make_record(make_step(FIND), make_step(SELL), score=1.0)
    failed = make_record(make_step(FIND), make_step(BUY), trial=1)
    credit = assign_credit(batch_of([solved, failed], TASKS), make_preset("capo"))
    deviation = math.sqrt(2.75 / 3) + 1e-6
    assert credit.advantage.tolist() == near([1.25 / deviation, 0.25 / deviation, -0.75 / deviation, -0.75 / deviation])


def test_capo_is_worth_as_much_as_its_critic() -> None:
    """Signal-to-noise ratio of the gradient over that of grpo, on a chain whose gradient is known exactly."""
    played = play(400, 8, seed=1)
    wrong, draw = played.actions != 0, np.random.default_rng(0).random(len(played.actions))
    presets, ratios = {"grpo": make_preset("grpo"), "capo": make_preset("capo")}, []
    for error_rate in (0.0, 0.2, 0.35, 0.5):
        said = np.where(draw < error_rate, ~wrong, wrong).astype(float)
        judged = replace(played, batch=played.batch.with_columns(critique=said))
        ratios.append(true_ratios(judged, presets)["capo"])
    assert ratios == pytest.approx([2.8, 2.2, 1.45, 0.56], abs=0.05)


def test_the_critic_needs_gold_calls_and_records() -> None:
    bare = Task(id="shop", prompts=("",))
    with pytest.raises(ConfigError, match="critique: task 'shop' has no gold calls"):
        assign_credit(batch_of(MANY[:2], {"shop": bare}), make_preset("capo"))
    with pytest.raises(ConfigError, match="critique: needs recorded trajectories"):
        assign_credit(batch_of_columns([[1.0]], ["g"]), make_preset("capo"))
