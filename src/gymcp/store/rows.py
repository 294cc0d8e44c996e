"""Records that the store returns besides whole trajectories."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gymcp.outcome import Outcome
from gymcp.store.codec import decode_text
from gymcp.store.validation import MAX_SHAPES, build_record, require_number, require_text
from gymcp.types import Json, Trajectory, Usage

EPISODE_COLUMNS = (
    'id, env, task, trial, attempt, latest, seed, "group", parent, outcome, score, components, reason, steps, usage,'
    " tags, grader, seq"
)
"""Columns of the view ``episodes``, in the order in which `episode_row` takes them."""
RECORDED_COLUMNS = EPISODE_COLUMNS.replace("latest", "0").replace("grader", "NULL")
"""The same columns from the table ``trajectories``, which does not know later attempts and grades."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeRow:
    """An episode without its steps, as the newest grade sees it."""

    id: str
    env: str
    task: str
    trial: int = 0
    attempt: int = 0
    """Number of the attempt, from 0; all but the last of a (task, trial) ended in infrastructure or were cancelled."""
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
    """Tags of the task, most important first."""
    grader: str | None = None
    """Name and version of the later grader; None if the grade is the recorded one."""
    seq: int = field(default=0, compare=False)
    """Position in the order of recording, from 1."""

    @property
    def success(self) -> bool | None:
        """True for a full score, False for less, None if there is no score."""
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
    """Name and version of the grader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCredit:
    """Credit that a preset assigned to the [T] steps of a trajectory. The newest of each preset is kept.

    Of a branch, these are its own steps. Of an episode without a score, or one that a search stopped, they are its
    first ones, from which others of its tree went on whose score counts; the later ones have no credit.
    """

    trajectory: str
    preset: str
    options: Mapping[str, Json] = field(default_factory=dict)
    """Options of the preset that differ from its defaults."""
    rewards: tuple[float, ...]
    """[T]: the rewards that were credited: the score on the last step, unless a shaper changed the column."""
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
    """The row from its `EPISODE_COLUMNS`. Raises TypeError or ValueError for columns that gymcp has not written."""
    kinds = tuple(map(type, columns))
    if kinds not in _known_kinds:
        _check_kinds(columns)
        if len(_known_kinds) < MAX_SHAPES:
            _known_kinds.add(kinds)
    steps = columns[13]
    if steps < 0:
        raise ValueError(f"steps is {steps}")
    return EpisodeRow(
        id=decode_text(columns[0]),
        env=decode_text(columns[1]),
        task=decode_text(columns[2]),
        trial=columns[3],
        attempt=columns[4],
        latest=bool(columns[5]),
        seed=int(columns[6]),
        group=decode_text(columns[7]),
        parent=None if columns[8] is None else decode_text(columns[8]),
        outcome=Outcome(columns[9]),
        score=parse_score(columns[10]),
        components=parse_components(columns[11]),
        reason=decode_text(columns[12]),
        steps=steps,
        usage=parse_usage(columns[14]),
        tags=tuple(require_text(tag, "a tag") for tag in json.loads(decode_text(columns[15]))),
        grader=None if columns[16] is None else decode_text(columns[16]),
        seq=columns[17],
    )


def parse_score(value: float | None) -> float | None:
    """Score from its column. Raises TypeError or ValueError for any other value."""
    if value is None:
        return None
    if not 0 <= require_number(value, "score") <= 1:
        raise ValueError(f"score is {value}, not in [0, 1]")
    return value


def parse_components(column: str | bytes) -> dict[str, float]:
    """Components from their column. Raises TypeError or ValueError for any other value."""
    if column == "{}":
        return {}
    components = json.loads(decode_text(column))
    if not isinstance(components, dict):
        raise TypeError("components are no table")
    return {
        name: value if isinstance(value, bool) else require_number(value, f"component {name[:60]!r}")
        for name, value in components.items()
    }


def parse_usage(column: str) -> Usage:
    """Usage from its column. Raises TypeError or ValueError for any other value."""
    usage = json.loads(column)
    if not isinstance(usage, dict):
        raise TypeError("usage is no table")
    return build_record(Usage, usage)


_TEXT, _WHOLE, _NONE, _NUMBER = (str, bytes), (int,), (type(None),), (float, int)
_KINDS: tuple[tuple[type, ...], ...] = (
    _TEXT, _TEXT, _TEXT, _WHOLE, _WHOLE, _WHOLE, (int, str), _TEXT, _TEXT + _NONE, (str,), _NUMBER + _NONE, _TEXT,
    _TEXT, _WHOLE, (str,), _TEXT, _TEXT + _NONE, _WHOLE,
)  # fmt: skip
"""Types that each of the `EPISODE_COLUMNS` may have."""
_known_kinds: set[tuple[type, ...]] = set()


def _check_kinds(columns: Sequence[Any]) -> None:
    for name, value, kinds in zip(EPISODE_COLUMNS.split(", "), columns, _KINDS, strict=True):
        if type(value) not in kinds:
            expected = " or ".join(_KIND_NAMES[kind] for kind in kinds if not (kind is int and float in kinds))
            raise TypeError(f"column {name} is {_KIND_NAMES[type(value)]}, not {expected}")


_KIND_NAMES: Mapping[type, str] = {
    str: "text",
    bytes: "bytes",
    int: "a whole number",
    float: "a number",
    type(None): "NULL",
}
