"""IGPO: gains in the log-probability of the gold answer, against the vector and hand computation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from signal_records import BUY, FIND, NAN, TASKS, TWO_STEPS, CountingModel, make_record, make_sample, make_step
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import advantages
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.credit.signals.gold_logprob import find_gold_answer, information_gain
from gymcp.trainers.credit.signals.registry import add_signals
from gymcp.trainers.credit.step_batch import batch_of
from gymcp.types import Action, GoldTurn, Task


def test_igpo_gain() -> None:
    vector = VECTORS["igpo_info_gain"]
    means = [float(np.mean(row)) for row in vector["inputs"]["gold_answer_token_logprobs"].values()]
    assert means == near([vector["mean_logprob"][at] for at in ("prior", "after_turn1", "after_turn2")])
    before, after = np.array(means[:-1]), np.array(means[1:])
    assert information_gain(before, after).tolist() == near(vector["log_prob_diff"])
    assert information_gain(before, after, "prob").tolist() == near(vector["prob_diff"])


def test_the_gold_answer_is_asked_for_before_every_step() -> None:
    model = CountingModel()
    batch = add_signals(batch_of([TWO_STEPS], TASKS), make_preset("igpo"), model)
    assert [(each.context, each.ids) for each in model.asked] == [
        ((2, 4), (90, 91)),
        ((2, 4, 6, 1, 8, 8, 8, 1), (90, 91)),
    ]
    assert batch.column("gold_logprob").tolist() == pytest.approx([-0.3, -0.475])
    assert batch.column("gold_logprob_after").tolist() == pytest.approx([-0.475, NAN], nan_ok=True)


def test_a_step_that_ends_a_user_turn_has_no_gain() -> None:
    gold = (GoldTurn(final_text="yes"), GoldTurn(calls=(FIND, BUY)))
    task = Task(id="shop", prompts=("", ""), gold=gold)
    steps = (make_step(sampled=make_sample([2], [3])), make_step(FIND, turn=1, sampled=make_sample([2, 3, 4], [5])))
    found = add_signals(batch_of([make_record(*steps)], {"shop": task}), make_preset("igpo"), CountingModel())
    assert np.isnan(found.column("gold_logprob_after")).all()
    assert find_gold_answer(task, 0, "shop") == Action(text="yes")
    assert find_gold_answer(task, 1, "shop") == Action(tool_calls=(BUY,))
    with pytest.raises(ConfigError, match="task 'shop' has no gold for user turn 3"):
        find_gold_answer(task, 2, "shop")


def test_igpo_normalises_gains_and_scores_together_and_sums_afterwards() -> None:
    """Values 1, -0.2 (gains) and 1 (score); 0.2 and 0: mean 0.4, population variance 0.256."""
    columns = {
        "gold_logprob": [[-2.0, -1.0, -1.2], [-2.0, -1.8]],
        "gold_logprob_after": [[-1.0, -1.2, NAN], [-1.8, NAN]],
    }
    found = advantages(make_preset("igpo"), [[0.0, 0.0, 1.0], [0.0, 0.0]], "gg", **columns)
    deviation = math.sqrt(0.256 + 1e-8)
    z = [[0.6 / deviation, -0.6 / deviation, 0.6 / deviation], [-0.2 / deviation, -0.4 / deviation]]
    assert found == [near([sum(row[t:]) for t in range(len(row))]) for row in z]
    halved = advantages(make_preset("igpo", gamma=0.5), [[0.0, 0.0, 1.0], [0.0, 0.0]], "gg", **columns)
    assert halved[0] == near([z[0][0] + 0.5 * z[0][1] + 0.25 * z[0][2], z[0][1] + 0.5 * z[0][2], z[0][2]])


def test_igpo_can_normalise_gains_and_scores_apart() -> None:
    """Gains 1, -0.2, 0.2: mean 1/3, population variance 0.248889. Scores 1 and 0: +-1."""
    columns = {
        "gold_logprob": [[-2.0, -1.0, -1.2], [-2.0, -1.8]],
        "gold_logprob_after": [[-1.0, -1.2, NAN], [-1.8, NAN]],
    }
    found = advantages(make_preset("igpo", joint=False), [[0.0, 0.0, 1.0], [0.0, 0.0]], "gg", **columns)
    gains = [(value - 1 / 3) / math.sqrt(0.56 / 2.25 + 1e-8) for value in (1.0, -0.2, 0.2)]
    score = 0.5 / math.sqrt(0.25 + 1e-8)
    assert found == [near([gains[0] + gains[1] + score, gains[1] + score, score]), near([gains[2] - score, -score])]
