"""Shares as texts for people."""

from __future__ import annotations


def format_percent(share: float | None, *, decimals: int = 1, missing: str = "–") -> str:
    """ "81.2 %"; `missing` for None. `report.formatting.percent` marks what only rounds to 0 or 100 %."""
    return missing if share is None else f"{100 * share:.{decimals}f} %"
