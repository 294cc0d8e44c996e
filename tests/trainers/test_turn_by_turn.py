"""SeeUPO: updates turn by turn, against the vector."""

from __future__ import annotations

import numpy as np
import pytest
from vectors import VECTORS, near

from gymcp.errors import ConfigError
from gymcp.trainers.credit.assign import advantages
from gymcp.trainers.credit.presets import make_preset
from gymcp.trainers.learner.turn_by_turn import next_factor
from gymcp.trainers.recipe.load import make_recipe


def test_seeupo_divides_by_the_deviation_of_the_batch_and_bounds() -> None:
    vector = VECTORS["seeupo_ratio"]["batch_norm_adv"]
    found = advantages(make_preset("seeupo"), [[float(score)] for score in vector["rewards"]], vector["group"])
    assert [row[0] for row in found] == near(vector["adv"])
    rare = advantages(make_preset("seeupo"), [[0.0]] * 31 + [[1.0]], ["a"] * 32)
    assert rare[-1] == [3.0]


def test_seeupo_multiplies_by_the_clipped_ratios_of_later_turns() -> None:
    vector = VECTORS["seeupo_ratio"]
    inputs = vector["inputs"]
    before, after, mask = (np.array(inputs[name]) for name in ("p_before", "p_after", "mask"))
    changes = [np.log(b / a)[m > 0] for a, b, m in zip(before, after, mask, strict=True)]
    first = [next_factor(1.0, change, inputs["clip"]) for change in changes]
    assert first == near(vector["ratio_after_turn_T"])
    second = [next_factor(factor, change, inputs["clip"]) for factor, change in zip(first, changes, strict=True)]
    assert second == near(vector["ratio_after_turn_T_minus_1_same_data"])


def test_a_schedule_needs_a_number_of_updates_that_is_known() -> None:
    table = {"env": "backoffice", "credit": {"preset": "seeupo"}, "learn": {"schedule": "cosine"}}
    with pytest.raises(ConfigError, match=r"learn\.schedule is 'cosine', and preset 'seeupo' takes one update"):
        make_recipe(table)
    assert make_recipe({**table, "learn": {}}).preset_name == "seeupo"
