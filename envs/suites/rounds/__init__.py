"""Rounds of parcels with hidden tables: two laboratories whose truth is known, for credit and for costs of tools."""

from gymcp.envs.suites.rounds.grading import grade_looks, grade_round
from gymcp.envs.suites.rounds.tasks import LEVELS, LOOKS, ROUNDS, SPLITS, Laboratory, make_suite, make_tasks

__all__ = [
    "LEVELS", "LOOKS", "ROUNDS", "SPLITS", "Laboratory", "grade_looks", "grade_round", "make_suite", "make_tasks",
]  # fmt: skip
