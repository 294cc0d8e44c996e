"""The advice on credit in a run's report, which the trainers' package computes if it is installed."""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from gymcp.errors import ConfigError
from gymcp.evaluators.report import CreditAdvice
from gymcp.store import TrajectoryStore
from gymcp.types import Task

MAX_STEPS = 50_000
"""Most steps of a run whose credit a report diagnoses; `gymcp credit RUN --diagnose` reads longer ones."""


def find_credit(folder: Path, tasks: Mapping[str, Task]) -> CreditAdvice | None:
    """Advice on the credit of a run; None if its episodes cannot be compared, or the extra `train` is not installed."""
    with TrajectoryStore.open(folder) as store:
        rows = [row for row in store.summaries() if row.score is not None and row.steps]
        comparable = max(Counter(row.group for row in rows).values(), default=0) > 1
        if not comparable or sum(row.steps for row in rows) > MAX_STEPS:
            return None
        try:
            diagnosis = importlib.import_module("gymcp.trainers.credit.diagnosis.rows")
            advice: CreditAdvice = diagnosis.credit_advice(store.iter_trajectories(latest=True), tasks)
        except (ModuleNotFoundError, ConfigError):
            return None
    return advice
