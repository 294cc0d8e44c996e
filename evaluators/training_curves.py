"""Curves of a training run: the numeric columns of its metrics, and its held-out success."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeGuard

from gymcp.evaluators.statistics import Interval, Paired, compare_paired
from gymcp.store.heldout import HeldoutResult
from gymcp.types import Json

Rows = Sequence[Mapping[str, Json]]
MAX_AMOUNT = 1e150
"""Bound on values that are drawn: beyond it, the range of a column could be infinite."""
_TEST = "test/"
_SUCCESS = "/success"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Held-out success after one iteration."""

    iteration: int
    success: float
    ci95: Interval | None
    scored: int | None
    """Number of tasks with a score; None if it was not recorded."""
    tasks: Mapping[str, bool] | None
    """Task id -> success; None if it was not recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationCounts:
    """The tasks of one evaluation, whether they have a score or not."""

    iteration: int
    tasks: int
    scored: int
    success: float | None
    """Success over the scored tasks; None if none has a score."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Evaluations of a training run on one split, in order."""

    split: str
    evaluations: tuple[Evaluation, ...]
    """Those in which a task has a score."""
    newest: EvaluationCounts | None = None
    """The tasks of the newest evaluation; None if their number was not recorded."""

    @property
    def first(self) -> Evaluation:
        return self.evaluations[0]

    @property
    def last(self) -> Evaluation:
        return self.evaluations[-1]

    @property
    def change(self) -> Paired | None:
        """The last evaluation compared with the first, on the tasks of both; None if tasks were not recorded."""
        first, last = self.first, self.last
        if first is last or first.tasks is None or last.tasks is None:
            return None
        pair = compare_paired(*({task: [float(each)] for task, each in of.items()} for of in (first.tasks, last.tasks)))
        return pair if pair.tasks else None


def read_held_out(rows: Rows, results: Sequence[HeldoutResult] = ()) -> tuple[HeldOut, ...]:
    """Evaluations by split; the split that was evaluated most often comes first. `results`: success by task."""
    tasks = {(result.iteration, result.split): result.success for result in results}
    names = dict.fromkeys(key for row in rows for key in row if key.startswith(_TEST) and key.endswith(_SUCCESS))
    splits = []
    for split in (name[len(_TEST) : -len(_SUCCESS)] for name in names):
        evaluations = tuple(each for row in rows if (each := _evaluation(row, split, tasks)) is not None)
        if evaluations:
            splits.append(HeldOut(split=split, evaluations=evaluations, newest=count_tasks(rows, split)))
    return tuple(sorted(splits, key=lambda each: -len(each.evaluations)))


def _evaluation(
    row: Mapping[str, Json], split: str, tasks: Mapping[tuple[int, str], Mapping[str, bool]]
) -> Evaluation | None:
    success, low, high, scored = (row.get(f"{_TEST}{split}/{name}") for name in ("success", "low", "high", "scored"))
    if not is_share(success):
        return None
    bounds = Interval(low=low, high=high, method="") if is_share(low) and is_share(high) else None
    return Evaluation(
        iteration=int(row["iteration"]),
        success=float(success),
        ci95=bounds,
        scored=scored if isinstance(scored, int) and scored >= 0 else None,
        tasks=tasks.get((int(row["iteration"]), split)),
    )


def count_tasks(rows: Rows, split: str) -> EvaluationCounts | None:
    """The tasks of the newest evaluation on a split; None if their number was not recorded."""
    evaluated = [row for row in rows if f"{_TEST}{split}/scored" in row]
    if not evaluated:
        return None
    tasks, scored, success = (evaluated[-1].get(f"{_TEST}{split}/{name}") for name in ("tasks", "scored", "success"))
    if not (isinstance(tasks, int) and isinstance(scored, int) and 0 <= scored <= tasks and tasks):
        return None
    return EvaluationCounts(
        iteration=int(evaluated[-1]["iteration"]),
        tasks=tasks,
        scored=scored,
        success=float(success) if is_share(success) else None,
    )


def is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_share(value: object) -> TypeGuard[float]:
    return is_number(value) and 0 <= value <= 1


def practice_of(rows: Rows) -> list[tuple[float, float]]:
    """(iteration, success) of the episodes that were learnt from."""
    return [(float(row["iteration"]), float(row["success"])) for row in rows if is_share(row.get("success"))]


def columns_of(rows: Rows) -> dict[str, list[tuple[float, float]]]:
    """Column -> (iteration, value) of each row that has a number in it; columns by name."""
    columns: dict[str, list[tuple[float, float]]] = {}
    for row in rows:
        for name, value in row.items():
            if name != "iteration" and is_number(value) and abs(value) < MAX_AMOUNT:
                columns.setdefault(name, []).append((float(row["iteration"]), float(value)))
    return dict(sorted(columns.items()))
