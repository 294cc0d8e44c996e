"""Metrics of a run, from its episodes: docs/evaluation.md explains each in plain words."""

from gymcp.evaluators.metrics.calls import CallFigures, GoldFigures, calls_beyond_gold, examine
from gymcp.evaluators.metrics.measure import examine_run, measure, rate
from gymcp.evaluators.metrics.records import (
    CallRates,
    Effort,
    Mean,
    Metrics,
    PassK,
    Radar,
    Rate,
    Spending,
    Times,
)

__all__ = [
    "CallFigures",
    "CallRates",
    "Effort",
    "GoldFigures",
    "Mean",
    "Metrics",
    "PassK",
    "Radar",
    "Rate",
    "Spending",
    "Times",
    "calls_beyond_gold",
    "examine",
    "examine_run",
    "measure",
    "rate",
]
