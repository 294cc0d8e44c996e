"""What a recipe may change about any preset: which tasks teach, and how much failures count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gymcp.trainers.batch import batch_of_columns
from gymcp.trainers.credit import assign_credit
from gymcp.trainers.recipe import make_recipe

REWARDS = [[0.0, 1.0], [0.0], [1.0], [1.0]]
"""Two tasks of two episodes; of the second both succeed."""
GROUPS = ["a", "a", "b", "b"]


def credit(**learn: Any) -> Any:
    recipe = make_recipe({"env": "backoffice", "credit": {"preset": "loop"}, "learn": learn})
    return assign_credit(batch_of_columns(REWARDS, GROUPS), recipe.preset)


def test_failures_count_as_much_as_the_recipe_says() -> None:
    assert credit().advantage.tolist() == [1.0, 1.0, -1.0, 0.0, 0.0]
    assert credit(negative=0.25).advantage.tolist() == [1.0, 1.0, -0.25, 0.0, 0.0]


@pytest.mark.parametrize(("informative", "kept"), [(False, 4), (True, 2)])
def test_tasks_that_all_solve_or_none_are_left_out_where_the_recipe_says_so(informative: bool, kept: int) -> None:
    found = credit(informative=informative)
    assert (len(found.batch.tasks), found.dropped) == (kept, 4 - kept)
    assert np.count_nonzero(found.advantage) == 3
