"""Settings of training on pairs of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PairRule = Literal["success", "value"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preference:
    """Learn from pairs of steps instead of advantages: -log sigmoid(beta (c - r)), averaged over pairs (DPO)."""

    beta: float = 0.1
    """Factor on the gain in log-probability over the reference policy."""
    rule: PairRule = "success"
    """Rule by which steps are paired: see `find_step_pairs`."""
    success: float = 1.0
    """Lowest score of a success."""
