"""The whole table."""

from __future__ import annotations

import cases_eval
import cases_models
import cases_runs
import cases_servers
import cases_training
import cases_usage
from case import Case

CASES: tuple[Case, ...] = (
    *cases_usage.CASES,
    *cases_eval.CASES,
    *cases_models.CASES,
    *cases_runs.CASES,
    *cases_training.CASES,
    *cases_servers.CASES,
)
