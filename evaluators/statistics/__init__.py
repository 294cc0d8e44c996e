"""Uncertainty of figures, from scores alone: docs/evaluation.md explains each method in plain words."""

from gymcp.evaluators.statistics.groups import Groups, compare_groups, fisher_exact, shuffle_groups
from gymcp.evaluators.statistics.intervals import (
    Interval,
    Scores,
    bootstrap_by_task,
    mean_ci95,
    pass_at_k,
    pass_hat_k,
    t_by_task,
    wilson,
    wilson_by_task,
)
from gymcp.evaluators.statistics.latency import Latency, latency_of
from gymcp.evaluators.statistics.paired import Paired, compare_paired, holm, mcnemar, sign_flip
from gymcp.evaluators.statistics.reliability import (
    Power,
    flake_index,
    noise_floor,
    plan_trials,
    within_task_variance,
)

__all__ = [
    "Groups",
    "Interval",
    "Latency",
    "Paired",
    "Power",
    "Scores",
    "bootstrap_by_task",
    "compare_groups",
    "compare_paired",
    "fisher_exact",
    "flake_index",
    "holm",
    "latency_of",
    "mcnemar",
    "mean_ci95",
    "noise_floor",
    "pass_at_k",
    "pass_hat_k",
    "plan_trials",
    "shuffle_groups",
    "sign_flip",
    "t_by_task",
    "wilson",
    "wilson_by_task",
    "within_task_variance",
]
