"""Verdicts and figures, from records alone. The graders are in `gymcp.evaluators.graders`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gymcp.exports import make_getattr

if TYPE_CHECKING:
    from gymcp.evaluators.grading import apply_grader
    from gymcp.evaluators.judge import Point, Rubric, judge_by_rubric, judge_grader, load_rubric
    from gymcp.evaluators.metrics import Metrics, examine_run, measure
    from gymcp.evaluators.report import Report, read_report, write_report, write_text
    from gymcp.evaluators.statistics import (
        Interval,
        Paired,
        compare_paired,
        mean_ci95,
        pass_at_k,
        pass_hat_k,
        plan_trials,
    )

__all__ = [
    "Interval",
    "Metrics",
    "Paired",
    "Point",
    "Report",
    "Rubric",
    "apply_grader",
    "compare_paired",
    "examine_run",
    "judge_by_rubric",
    "judge_grader",
    "load_rubric",
    "mean_ci95",
    "measure",
    "pass_at_k",
    "pass_hat_k",
    "plan_trials",
    "read_report",
    "write_report",
    "write_text",
]

if not TYPE_CHECKING:
    __getattr__ = make_getattr(
        __name__,
        {
            "grading": "apply_grader",
            "judge": "Point Rubric judge_by_rubric judge_grader load_rubric",
            "metrics": "Metrics examine_run measure",
            "report": "Report read_report write_report write_text",
            "statistics": "Interval Paired compare_paired mean_ci95 pass_at_k pass_hat_k plan_trials",
        },
    )
