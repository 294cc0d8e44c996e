"""What the store hands out beside whole trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymcp.store.checked import MAX_SHAPES, made, number_of, text_of
from gymcp.store.codec import untext
from gymcp.types import Json, Outcome, Trajectory, Usage

EPISODE_COLUMNS = (
    'id, env, task, trial, attempt, latest, seed, "group", parent, outcome, score, components, reason, steps, usage,'
    " tags, grader, seq"
)
"""Of the view ``episodes``, as `episode_row` takes them."""
RECORDED_COLUMNS = EPISODE_COLUMNS.replace("latest", "0").replace("grader", "NULL")
"""The same of the table ``trajectories``, which knows nothing of later attempts and grades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRow:
    """An episode without its steps, as the newest grade sees it."""

    id: str
    env: str
    task: str
    trial: int = 0
    attempt: int = 0
    """From 0; attempts of a (task, trial) before the last ended in infrastructure or were cancelled."""
    latest: bool = True
    """True for the last attempt of its (task, trial): the one that counts."""
    seed: int = 0
    group: str = ""
    parent: str | None = None
    outcome: Outcome = Outcome.SCORED
    score: float | None = None
    components: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    tags: tuple[str, ...] = ()
    """The task's, most important first."""
    grader: str | None = None
    """Who graded it again; None where the grade is the recorded one."""
    seq: int = field(default=0, compare=False)
    """Its place in the order of recording, from 1."""

    @property
    def success(self) -> bool | None:
        """True for a full score, False for less, None where there is no score."""
        return None if self.score is None else self.score >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """A later verdict on a recorded trajectory. The newest one counts."""

    trajectory: str
    outcome: Outcome
    score: float | None
    components: Mapping[str, float]
    reason: str
    graded_at: str
    """UTC, ISO 8601."""
    grader: str
    """Name and version of what graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCredit:
    """What a preset gave to each of the [T] steps of a trajectory. Of one preset the newest is kept."""

    trajectory: str
    preset: str
    options: Mapping[str, Json] = field(default_factory=dict)
    """Of the preset, where they are not its defaults."""
    rewards: tuple[float, ...]
    """[T]: what was credited: the score on the last step, unless a shaper made another column of it."""
    returns: tuple[float, ...]
    """[T]: the discounted sum of `rewards` from each step on."""
    advantages: tuple[float, ...]
    """[T]: the weighted sum of the preset's terms."""
    assigned_at: str = ""
    """UTC, ISO 8601; the store fills it in."""


def with_grade(trajectory: Trajectory, grade: Grade) -> Trajectory:
    """The trajectory as `grade` sees it."""
    return replace(
        trajectory,
        outcome=grade.outcome,
        score=grade.score,
        components=grade.components,
        reason=grade.reason,
    )


def episode_row(columns: Sequence[Any]) -> EpisodeRow:
    """From the `EPISODE_COLUMNS` of an episode. Raises TypeError or ValueError for what gymcp has not written."""
    kinds = tuple(map(type, columns))
    if kinds not in _known:
        _check_kinds(columns)
        if len(_known) < MAX_SHAPES:
            _known.add(kinds)
    steps = columns[13]
    if steps < 0:
        raise ValueError(f"steps is {steps}")
    return EpisodeRow(
        id=untext(columns[0]),
        env=untext(columns[1]),
        task=untext(columns[2]),
        trial=columns[3],
        attempt=columns[4],
        latest=bool(columns[5]),
        seed=int(columns[6]),
        group=untext(columns[7]),
        parent=None if columns[8] is None else untext(columns[8]),
        outcome=Outcome(columns[9]),
        score=score_of(columns[10]),
        components=components_of(columns[11]),
        reason=untext(columns[12]),
        steps=steps,
        usage=usage_of(columns[14]),
        tags=tuple(text_of(tag, "a tag") for tag in json.loads(untext(columns[15]))),
        grader=None if columns[16] is None else untext(columns[16]),
        seq=columns[17],
    )


def score_of(value: float | None) -> float | None:
    """Of a column. Raises TypeError or ValueError for what is no score."""
    if value is None:
        return None
    if not 0 <= number_of(value, "score") <= 1:
        raise ValueError(f"score is {value}, not in [0, 1]")
    return value


def components_of(column: str | bytes) -> dict[str, float]:
    """Of a column. Raises TypeError or ValueError for what are no components."""
    if column == "{}":
        return {}
    found = json.loads(untext(column))
    if not isinstance(found, dict):
        raise TypeError("components are no table")
    return {
        name: value if isinstance(value, bool) else number_of(value, f"component {name[:60]!r}")
        for name, value in found.items()
    }


def usage_of(column: str) -> Usage:
    """Of a column. Raises TypeError or ValueError for what is no usage."""
    found = json.loads(column)
    if not isinstance(found, dict):
        raise TypeError("usage is no table")
    return made(Usage, found)


_TEXT, _WHOLE, _NONE, _NUMBER = (str, bytes), (int,), (type(None),), (float, int)
_KINDS: tuple[tuple[type, ...], ...] = (
    _TEXT, _TEXT, _TEXT, _WHOLE, _WHOLE, _WHOLE, (int, str), _TEXT, _TEXT + _NONE, (str,), _NUMBER + _NONE, _TEXT,
    _TEXT, _WHOLE, (str,), _TEXT, _TEXT + _NONE, _WHOLE,
)  # fmt: skip
"""Kinds that each of the `EPISODE_COLUMNS` may have."""
_known: set[tuple[type, ...]] = set()


def _check_kinds(columns: Sequence[Any]) -> None:
    for name, value, kinds in zip(EPISODE_COLUMNS.split(", "), columns, _KINDS, strict=True):
        if type(value) not in kinds:
            wanted = " or ".join(_WORDS[kind] for kind in kinds if not (kind is int and float in kinds))
            raise TypeError(f"column {name} is {_WORDS[type(value)]}, not {wanted}")


_WORDS: Mapping[type, str] = {str: "text", bytes: "bytes", int: "a whole number", float: "a number", type(None): "NULL"}
