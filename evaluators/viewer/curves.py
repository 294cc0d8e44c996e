"""Curves of a training run: the numeric columns of its metrics, held-out success first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gymcp.store.metric_rows import read_metric_rows
from gymcp.types import Json

MAX_POINTS = 400
"""Points of one curve: more than a small picture has pixels."""
MAX_COLUMNS = 200
MAX_AMOUNT = 1e150
"""Bound on values that are drawn: beyond it, the range of a column could be infinite."""
_TEST, _SUCCESS = "test/", "/success"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """The last evaluation of a training run on held-out tasks."""

    split: str
    iteration: int
    success: float
    low: float | None
    """Lower end of the 95 % interval; None if it was not recorded."""
    high: float | None


def curves_object(folder: Path) -> list[dict[str, Json]]:
    """The curves for the page: name, group and [iteration, value] points each; held-out curves also have bounds."""
    rows = read_metric_rows(folder)
    columns = _columns(rows)
    held_out = _splits(columns)
    bounds = {f"{_TEST}{split}/{end}" for split in held_out for end in ("low", "high")}
    names = [f"{_TEST}{split}{_SUCCESS}" for split in held_out]
    names += sorted(name for name in columns if name not in bounds and name not in names)
    made = []
    for name in names[:MAX_COLUMNS]:
        curve: dict[str, Json] = {"name": name, "points": _thin(columns[name])}
        if name.endswith(_SUCCESS) and name.startswith(_TEST):
            split = name[len(_TEST) : -len(_SUCCESS)]
            low, high = (dict(columns.get(f"{_TEST}{split}/{end}", ())) for end in ("low", "high"))
            curve["band"] = [[at, low[at], high[at]] for at, _ in curve["points"] if at in low and at in high]
        made.append(curve)
    return made


def last_held_out(rows: Sequence[Mapping[str, Json]]) -> HeldOut | None:
    """The last evaluation on the split that was evaluated most often; None without any."""
    columns = _columns(rows)
    for split in _splits(columns):
        iteration, success = columns[f"{_TEST}{split}{_SUCCESS}"][-1]
        low, high = (dict(columns.get(f"{_TEST}{split}/{end}", ())).get(iteration) for end in ("low", "high"))
        return HeldOut(split=split, iteration=iteration, success=success, low=low, high=high)
    return None


def _splits(columns: Mapping[str, Sequence[tuple[int, float]]]) -> list[str]:
    """Splits with a success, the one that was evaluated most often first."""
    names = [name for name in columns if name.startswith(_TEST) and name.endswith(_SUCCESS)]
    return [name[len(_TEST) : -len(_SUCCESS)] for name in sorted(names, key=lambda name: (-len(columns[name]), name))]


def _columns(rows: Sequence[Mapping[str, Json]]) -> dict[str, list[tuple[int, float]]]:
    """Column -> (iteration, value) of each row that has a finite number in it."""
    columns: dict[str, list[tuple[int, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "iteration" and _is_drawn(value):
                columns.setdefault(name, []).append((row["iteration"], float(value)))
    return columns


def _is_drawn(value: Json) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return abs(value) < MAX_AMOUNT and math.isfinite(value)


def _thin(points: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most `MAX_POINTS` of the points, evenly spread, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return list(points)
    step = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(at * step)] for at in range(MAX_POINTS)]
