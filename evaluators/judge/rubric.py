"""Rubrics: files in which people write what a judge looks for."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gymcp.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One statement that is true or false of an episode."""

    id: str
    text: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Rubric:
    """The points, or the scale, by which a model judges episodes."""

    name: str
    version: str
    text: str = ""
    """Instructions for the judge that hold for all tasks."""
    points: tuple[Point, ...] = ()
    """Points of every task that has none of its own; the score is the weighted share of points that are met."""
    tasks: Mapping[str, tuple[Point, ...]] = field(default_factory=dict)
    """Points of single tasks, by task id."""
    scale: int = 0
    """Highest mark, counted from 0, for a rubric without points; the score is the judge's mark divided by it."""

    def points_of(self, task: str) -> tuple[Point, ...]:
        """Points for an episode of that task; empty if it is marked on the scale instead."""
        return self.tasks.get(task, self.points)


def load_rubric(file: Path) -> Rubric:
    """The rubric in a TOML file. Raises ConfigError if it cannot be read, is invalid, or holds nothing to judge by."""
    where = f"rubric {file}"
    try:
        table = tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{where}: cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # TOML, and UTF-8
        raise ConfigError(f"{where}: is not TOML: {error}") from error
    known = {"name", "version", "text", "points", "tasks", "scale"}
    if unknown := sorted(set(table) - known):
        raise ConfigError(f"{where}: unknown key '{unknown[0]}'; have {', '.join(sorted(known))}")
    tasks = table.get("tasks", {})
    if not isinstance(tasks, dict) or not all(isinstance(each, dict) for each in tasks.values()):
        raise ConfigError(f'{where}: tasks: must be tables, such as [tasks."pay/bob"] with points = [...]')
    rubric = Rubric(
        name=_text(table, "name", where) or file.stem,
        version=_text(table, "version", where) or "1",
        text=_text(table, "text", where).strip(),
        points=_points(table.get("points", []), f"{where}: points"),
        tasks={task: _points(each.get("points", []), f"{where}: tasks.{task}") for task, each in tasks.items()},
        scale=_scale(table.get("scale", 0), where),
    )
    _check(rubric, where)
    return rubric


def _check(rubric: Rubric, where: str) -> None:
    if not (rubric.points or rubric.tasks or rubric.scale):
        raise ConfigError(f"{where}: is empty: give it points, points of tasks, or a scale with a text")
    if rubric.scale and not rubric.text:
        raise ConfigError(f"{where}: a scale needs a text that says what earns how much")
    if rubric.scale and rubric.points:
        raise ConfigError(f"{where}: has points and a scale: which is the score? leave one out")
    if empty := [task for task, points in rubric.tasks.items() if not points]:
        raise ConfigError(f"{where}: tasks.{empty[0]}: has no points")


def _scale(value: Any, where: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= 100:
        raise ConfigError(f"{where}: scale: must be a whole number from 1 to 100, not {value!r}")
    return value


def _text(table: Mapping[str, Any], key: str, where: str) -> str:
    value = table.get(key, "")
    if not isinstance(value, str):
        raise ConfigError(f"{where}: {key}: must be text, not {value!r}")
    return value


def _points(entries: Any, where: str) -> tuple[Point, ...]:
    """Points from a list of texts, or of tables with id, text and weight."""
    if not isinstance(entries, list):
        raise ConfigError(f"{where}: must be a list of texts or of tables with a text")
    points = []
    for number, each in enumerate(entries, 1):
        fields = {"text": each} if isinstance(each, str) else each
        if not isinstance(fields, dict) or set(fields) - {"id", "text", "weight"}:
            raise ConfigError(f"{where}: number {number} is neither a text nor a table of id, text, weight")
        weight = fields.get("weight", 1.0)
        if not isinstance(weight, int | float) or not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"{where}: number {number}: the weight must be more than 0, not {weight!r}")
        text = _text(fields, "text", where).strip()
        if not text:
            raise ConfigError(f"{where}: number {number} has no text")
        points.append(Point(id=_text(fields, "id", where) or f"p{number}", text=text, weight=float(weight)))
    if len({point.id for point in points}) < len(points):
        raise ConfigError(f"{where}: two points have the same id")
    return tuple(points)
