"""Metrics of a run, from its episodes: docs/evaluation.md explains each in plain words."""

from gymcp.evaluators.metrics.calls import CallFigures, GoldFigures, calls_beyond_gold, examine
from gymcp.evaluators.metrics.coverage import (
    MIN_COVERAGE,
    MIN_COVERAGE_KEY,
    coverage_floor,
    explain_low_coverage,
    has_headline,
)
from gymcp.evaluators.metrics.held_out import bound_held_out, rate_held_out, refuse_held_out
from gymcp.evaluators.metrics.measure import COST, PriceSteps, examine_run, measure, rate
from gymcp.evaluators.metrics.records import (
    Bounds,
    CallRates,
    Effort,
    Mean,
    Metrics,
    PassK,
    Radar,
    Rate,
    Retries,
    Spending,
    Times,
    bounds_of,
)
from gymcp.evaluators.metrics.trees import TreeFigures, measure_trees

__all__ = [
    "COST",
    "MIN_COVERAGE",
    "MIN_COVERAGE_KEY",
    "Bounds",
    "CallFigures",
    "CallRates",
    "Effort",
    "GoldFigures",
    "Mean",
    "Metrics",
    "PassK",
    "PriceSteps",
    "Radar",
    "Rate",
    "Retries",
    "Spending",
    "Times",
    "TreeFigures",
    "bound_held_out",
    "bounds_of",
    "calls_beyond_gold",
    "coverage_floor",
    "examine",
    "examine_run",
    "explain_low_coverage",
    "has_headline",
    "measure",
    "measure_trees",
    "rate",
    "rate_held_out",
    "refuse_held_out",
]
