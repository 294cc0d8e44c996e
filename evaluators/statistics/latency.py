"""Latency of decisions and tool calls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Time until an answer came."""

    count: int
    """Number of measured answers."""
    p50_s: float
    """Median, in seconds."""
    p95_s: float
    """95th percentile, in seconds."""


def latency_of(seconds: Iterable[float]) -> Latency | None:
    """The quantiles of the times; None if no time was recorded, as in an imported run."""
    recorded = [value for value in seconds if math.isfinite(value)]
    if not any(value > 0 for value in recorded):
        return None
    p50, p95 = np.percentile(recorded, [50, 95])
    return Latency(count=len(recorded), p50_s=float(p50), p95_s=float(p95))
