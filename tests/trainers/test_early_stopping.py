"""Reasons to stop training early, found in the metrics alone."""

from __future__ import annotations

from gymcp.trainers.recipe.recipe import LearnRecipe
from gymcp.trainers.run.early_stopping import collapse_reason, consecutive_lost
from gymcp.types import Json

LEARN = LearnRecipe(min_entropy=0.1, patience=2)


def test_a_policy_without_entropy_for_patience_iterations_has_collapsed() -> None:
    rows = [{"iteration": n, "entropy": entropy} for n, entropy in enumerate((1.0, 0.05, 0.04))]
    assert collapse_reason(rows[:2], LEARN) == ""
    assert collapse_reason(rows, LEARN) == "the policy collapsed: its entropy was below 0.1 for 2 iterations, now 0.04"
    assert collapse_reason([*rows, {"iteration": 3, "entropy": 0.2}], LEARN) == ""


def test_skipped_iterations_do_not_count_towards_a_collapse() -> None:
    rows: list[dict[str, Json]] = [{"entropy": 0.05}, {"skipped": "every episode was lost"}, {"entropy": 0.05}]
    assert "collapsed" in collapse_reason(rows, LEARN)


def test_a_policy_that_stops_writing_usable_actions_has_collapsed_but_not_one_that_never_did() -> None:
    unusable: list[dict[str, Json]] = [{"unusable": share} for share in (0.01, 0.5, 0.97, 0.99)]
    assert "more than 95% of its steps had no usable action for 2 iterations, and once it was 1%" in collapse_reason(
        unusable, LEARN
    )
    assert collapse_reason([{"unusable": 1.0}] * 9, LEARN) == ""
    assert collapse_reason(unusable[:3], LEARN) == ""


def test_only_consecutive_lost_iterations_count() -> None:
    assert consecutive_lost([]) == 0
    assert consecutive_lost([{"skipped": "x"}, {"success": 0.1}, {"skipped": "x"}, {"skipped": "x"}]) == 2
    assert consecutive_lost([{"skipped": "x"}, {"success": 0.1}]) == 0
