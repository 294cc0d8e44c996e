"""When training ends before its time, told from the metrics alone."""

from __future__ import annotations

from gymcp.trainers.recipe.recipe import LearnRecipe
from gymcp.trainers.run.early_stopping import collapse, lost
from gymcp.types import Json

LEARN = LearnRecipe(min_entropy=0.1, patience=2)


def test_a_policy_without_entropy_has_collapsed_after_as_many_iterations_as_patience() -> None:
    rows = [{"iteration": n, "entropy": entropy} for n, entropy in enumerate((1.0, 0.05, 0.04))]
    assert collapse(rows[:2], LEARN) == ""
    assert collapse(rows, LEARN) == "the policy collapsed: its entropy was below 0.1 for 2 iterations, now 0.04"
    assert collapse([*rows, {"iteration": 3, "entropy": 0.2}], LEARN) == ""


def test_iterations_that_learnt_nothing_are_not_counted() -> None:
    rows: list[dict[str, Json]] = [{"entropy": 0.05}, {"skipped": "every episode was lost"}, {"entropy": 0.05}]
    assert "collapsed" in collapse(rows, LEARN)


def test_a_policy_that_lost_its_form_has_collapsed_and_one_that_never_had_it_has_not() -> None:
    unusable: list[dict[str, Json]] = [{"unusable": share} for share in (0.01, 0.5, 0.97, 0.99)]
    assert "more than 95% of its steps had no usable action for 2 iterations, and once it was 1%" in collapse(
        unusable, LEARN
    )
    assert collapse([{"unusable": 1.0}] * 9, LEARN) == ""
    assert collapse(unusable[:3], LEARN) == ""


def test_lost_iterations_count_only_one_after_another() -> None:
    assert lost([]) == 0
    assert lost([{"skipped": "x"}, {"success": 0.1}, {"skipped": "x"}, {"skipped": "x"}]) == 2
    assert lost([{"skipped": "x"}, {"success": 0.1}]) == 0
