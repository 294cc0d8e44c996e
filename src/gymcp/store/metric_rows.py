"""Rows of ``metrics.jsonl``: the figures of a training run after each iteration."""

from __future__ import annotations

import json
from pathlib import Path

from gymcp.errors import StoreError
from gymcp.store.untrusted_files import MAX_LINES_BYTES, read_foreign
from gymcp.types import Json

METRICS_FILE = "metrics.jsonl"
MAX_ITERATION = 10**12
"""Bound on the number of an iteration; rows beyond it are left out."""


def read_metric_rows(folder: Path) -> list[dict[str, Json]]:
    """The rows of a run that name their iteration, in order; a kill may have cut the last one. Empty without a file."""
    try:
        content = read_foreign(folder, METRICS_FILE, most_bytes=MAX_LINES_BYTES)
    except (OSError, StoreError):
        return []
    rows = []
    for line in content.splitlines():
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict) and _is_iteration(row.get("iteration")):
            rows.append(row)
    return rows


def _is_iteration(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < MAX_ITERATION
