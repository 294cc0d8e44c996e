"""Curves of a training run for the page: the numeric columns of its metrics, held-out success first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gymcp.evaluators.metrics import bound_held_out, rate_held_out
from gymcp.evaluators.training_curves import Rows, columns_of, read_held_out
from gymcp.store.metric_rows import read_metric_rows
from gymcp.types import Json

T = TypeVar("T")
MAX_POINTS = 400
"""Points of one curve: more than a small picture has pixels."""
MAX_COLUMNS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class LastHeldOut:
    """The last evaluation of a training run on held-out tasks."""

    split: str
    iteration: int
    success: float
    low: float | None
    """Lower end of the 95 % interval; None if it was not recorded."""
    high: float | None
    bounds: tuple[float, float] | None
    """Least and greatest success over all tasks if too few have a score for a headline figure; else None."""
    coverage: str
    """Coverage in words: "60/64 scored"; empty if the number of tasks was not recorded."""


def curves_object(folder: Path) -> list[dict[str, Json]]:
    """The curves for the page: name and [iteration, value] points each; held-out curves also have bounds."""
    rows = read_metric_rows(folder)
    curves: list[dict[str, Json]] = []
    shown = set()
    for held in read_held_out(rows):
        name = f"test/{held.split}/success"
        drawn = _thin(held.evaluations)
        band = [[each.iteration, each.ci95.low, each.ci95.high] for each in drawn if each.ci95]
        curves.append({"name": name, "points": [(each.iteration, each.success) for each in drawn], "band": band})
        shown |= {name, f"test/{held.split}/low", f"test/{held.split}/high"}
    others = {name: points for name, points in columns_of(rows).items() if name not in shown}
    curves += [{"name": name, "points": _thin(points)} for name, points in others.items()]
    return curves[:MAX_COLUMNS]


def last_held_out(rows: Rows, floor: float) -> LastHeldOut | None:
    """The last evaluation on the split that was evaluated most often; None without any.

    `floor`: share of its tasks that must have a score for a headline figure.
    """
    held_out = read_held_out(rows)
    if not held_out:
        return None
    held, last = held_out[0], held_out[0].last
    bounds, rate = bound_held_out(held.newest, floor), rate_held_out(held.newest)
    return LastHeldOut(
        split=held.split,
        iteration=held.newest.iteration if held.newest is not None and bounds is not None else last.iteration,
        success=last.success,
        low=last.ci95.low if last.ci95 else None,
        high=last.ci95.high if last.ci95 else None,
        bounds=None if bounds is None else (bounds.low, bounds.high),
        coverage="" if rate is None else rate.coverage,
    )


def _thin(points: Sequence[T]) -> list[T]:
    """At most `MAX_POINTS` of the points, evenly spread, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return list(points)
    step = (len(points) - 1) / (MAX_POINTS - 1)
    return [points[round(at * step)] for at in range(MAX_POINTS)]
