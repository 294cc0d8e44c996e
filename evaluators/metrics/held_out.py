"""Held-out success of a training run under the coverage floor: a figure only if enough of the tasks have a score."""

from __future__ import annotations

from gymcp.evaluators.metrics.coverage import explain_low_coverage, has_headline
from gymcp.evaluators.metrics.records import Bounds, Rate
from gymcp.evaluators.training_curves import EvaluationCounts


def rate_held_out(counts: EvaluationCounts | None) -> Rate | None:
    """Success of an evaluation with the number of its tasks; None if that was not recorded."""
    if counts is None:
        return None
    coverage = f"{counts.scored}/{counts.tasks} scored"
    return Rate(episodes=counts.tasks, scored=counts.scored, success=counts.success, ci95=None, coverage=coverage)


def refuse_held_out(counts: EvaluationCounts | None, floor: float, folder: str) -> str:
    """Reason why the success of an evaluation is no headline figure; empty if it is one.

    Also empty for runs of an older gymcp, which did not record how many tasks were asked.
    """
    rate = rate_held_out(counts)
    return "" if rate is None else explain_low_coverage(rate, floor, lost=(), folder=folder, counted="tasks")


def bound_held_out(counts: EvaluationCounts | None, floor: float) -> Bounds | None:
    """Bounds over all tasks, to be shown if `refuse_held_out` refuses the success; else None."""
    rate = rate_held_out(counts)
    return None if rate is None or has_headline(rate, floor) else rate.bounds
