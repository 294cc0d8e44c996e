"""Settings of a recipe that apply to any preset: filters, the overlong penalty and the weight of failures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from strategies import signal_columns

from gymcp.trainers.credit.assign import assign_credit, step_credits
from gymcp.trainers.credit.presets import PRESETS
from gymcp.trainers.credit.step_batch import batch_of_columns
from gymcp.trainers.recipe.build_preset import build_preset
from gymcp.trainers.recipe.load import make_recipe

REWARDS = [[0.0, 1.0], [0.0], [1.0], [1.0]]
"""Scores of two tasks with two episodes each; both episodes of the second succeed."""
GROUPS = ["a", "a", "b", "b"]


def credit(**learn: Any) -> Any:
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": "loop"}, "learn": learn})
    tokens = [[4.0, 4.0], [9.0], [7.0], [6.0]]
    return assign_credit(batch_of_columns(REWARDS, GROUPS, tokens=tokens), build_preset(recipe))


def test_negative_scale_weakens_failures() -> None:
    assert credit().advantage.tolist() == [1.0, 1.0, -1.0, 0.0, 0.0]
    assert credit(negative_scale=0.25).advantage.tolist() == [1.0, 1.0, -0.25, 0.0, 0.0]


@pytest.mark.parametrize(("drop", "count"), [(False, 4), (True, 2)])
def test_drop_uninformative_leaves_out_tasks_with_equal_scores(drop: bool, count: int) -> None:
    found = credit(drop_uninformative=drop)
    assert (len(found.batch.tasks), found.dropped) == (count, 4 - count)
    assert np.count_nonzero(found.advantage) == 3


def test_overlong_tokens_penalise_long_episodes_and_leave_their_score() -> None:
    found = credit(overlong_tokens=8, overlong_buffer=2)  # 8 tokens cost 1, 9 cost 1.5, 7 cost .5 and 6 nothing
    assert found.advantage.tolist() == [1.5, 1.5, -1.5, -0.5, 0.5]
    assert found.batch.totals(found.batch.column("reward")).tolist() == [1.0, 0.0, 1.0, 1.0]


def test_cost_weight_subtracts_the_price_of_calls_and_leaves_the_score() -> None:
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": "loop"}, "learn": {"cost_weight": 2.0}})
    costs = [[0.05, 0.0], [0.0], [0.1], [0.0]]  # net scores: 0.9 and 0; 0.8 and 1
    found = assign_credit(batch_of_columns(REWARDS, GROUPS, cost=costs), build_preset(recipe))
    assert found.advantage.tolist() == pytest.approx([0.9, 0.9, -0.9, -0.2, 0.2])
    assert found.batch.totals(found.batch.column("reward")).tolist() == [1.0, 0.0, 1.0, 1.0]


def test_both_penalties_add_up() -> None:
    learn = {"cost_weight": 1.0, "overlong_tokens": 8, "overlong_buffer": 2}
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": "loop"}, "learn": learn})
    tokens, costs = [[4.0, 4.0], [9.0], [7.0], [6.0]], [[0.0, 0.0], [0.25], [0.5], [0.0]]
    found = assign_credit(batch_of_columns(REWARDS, GROUPS, tokens=tokens, cost=costs), build_preset(recipe))
    # net: 1 - 1 and 0 - 1.5 - 0.25; 1 - 0.5 - 0.5 and 1
    assert found.advantage.tolist() == pytest.approx([1.75, 1.75, -1.75, -1.0, 1.0])


def test_keep_cleanest_limits_the_episodes_of_a_task() -> None:
    found = credit(keep_cleanest=4)
    assert (found.batch.tasks, found.dropped) == (("a", "a"), 2)


@pytest.mark.parametrize("preset", ["g2po", "gagpo", "tigpo"])
def test_values_that_a_preset_makes_of_scores_are_those_of_lowered_scores(preset: str) -> None:
    """Both are solved in one step from one state, so only what it cost tells them apart."""
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": preset}, "learn": {"cost_weight": 1.0}})
    batch = batch_of_columns([[1.0], [1.0]], ["a", "a"], [["s"], ["s"]], cost=[[0.0], [0.5]])
    found = assign_credit(batch, build_preset(recipe)).advantage
    assert found[0] == pytest.approx(-found[1])
    assert found[0] > 0.2


@pytest.mark.parametrize("preset", sorted(PRESETS.keys() - {"matchtir"}))
@pytest.mark.parametrize(
    "learn", [{"drop_uninformative": True, "negative_scale": 0.1}, {"keep_cleanest": 4}], ids=["dapo", "roc"]
)
def test_without_episodes_left_there_is_no_credit(preset: str, learn: dict[str, Any]) -> None:
    options = {"components": ["reward"]} if preset == "gdpo" else {}
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": preset, **options}, "learn": learn})
    batch = batch_of_columns([[1.0], [1.0]], ["a", "a"], **signal_columns([[1.0], [1.0]]))
    found = assign_credit(batch, build_preset(recipe))
    assert (len(found.advantage), found.dropped) == (0, 2)
    assert step_credits(found, build_preset(recipe), name=preset, options={}) == []
