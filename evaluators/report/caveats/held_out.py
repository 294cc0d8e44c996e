"""Held-out success of a training run as it is shown: a figure only if enough tasks have a score."""

from __future__ import annotations

from gymcp.evaluators.metrics import bound_held_out
from gymcp.evaluators.report.caveats.denominators import between
from gymcp.evaluators.report.formatting import percent
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.training_curves import HeldOut


def describe_success(evidence: Evidence, held: HeldOut) -> str:
    """Success after the last evaluation: "75.0 %", or its bounds over all tasks if too few have a score."""
    bounds = bound_held_out(held.newest, evidence.min_coverage)
    return percent(held.last.success) if bounds is None else between(bounds)
