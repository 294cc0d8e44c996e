"""Shares as texts for people."""

from __future__ import annotations


def format_percent(share: float | None, *, decimals: int = 1, missing: str = "–") -> str:
    """ "81.2 %"; `missing` for None. `report.formatting.percent` marks what only rounds to 0 or 100 %."""
    return missing if share is None else f"{100 * share:.{decimals}f} %"


def format_bounds(low: float, high: float) -> str:
    """ "70.2 .. 87.8 %", in place of a figure that has too few scores behind it."""
    return f"{100 * low:.1f} .. {100 * high:.1f} %"
