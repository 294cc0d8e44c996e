"""Two plays of the same calls, compared: the states in which they ended, and the answers that they got.

Answers may hold parts that differ at any time, such as a time or a random id. Two answers that differ in these alone
are alike; the parts are named, because a grader or a state key that reads them would differ as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymcp.evaluators.json_diff import ABSENT, STATE_RULE, brief, differences
from gymcp.types import Json, Trajectory

AROUND_CHARS = 30
"""Characters of an answer that are quoted before a difference, and after its beginning."""
_VOLATILE = {
    "a temporary path": r"/tmp/[\w./+-]+",
    "a random id": (
        r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b|\b0x[0-9a-f]{6,}\b"
        r"|\b(?=[a-f]{0,63}\d)(?=\d{0,63}[a-f])[0-9a-f]{12,64}\b"
    ),
    "a time": (
        r"\b(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z\b|\s?[+-]\d\d:?\d\d\b)?"
        r"|\b1[6-9]\d{8}(?:\.\d+|\d{3}|\d{6})?\b"
    ),
    "a duration": r"\b\d+(?:\.\d+)?(?:e-\d+)?\s?(?:[mnµu]s|s|sec(?:ond)?s?|milliseconds?|minutes?)\b",
}
"""Part of an answer that differs at any time -> pattern of it; the first that fits counts. Numbers alone do not count:
a counter that goes on from one start to the next would then be alike."""
_ANY_VOLATILE = re.compile("|".join(f"({pattern})" for pattern in _VOLATILE.values()), re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerPair:
    """The answers of one tool to the same call in two plays."""

    tool: str
    first: str
    second: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerDifference:
    """A difference between two answers."""

    tool: str
    text: str
    """Both answers at the first difference; the kind of a volatile part, and the part."""
    volatile: bool
    """True if nothing but volatile parts differs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeats:
    """Comparison of two plays of the same tasks."""

    tasks: int
    other_ends: tuple[str, ...] = ()
    """Tasks that ended otherwise when they were played again, each with the first difference."""
    answers: tuple[AnswerPair, ...] = ()
    """The answers of both plays, in order."""


def compare_plays(first: Sequence[Trajectory], second: Sequence[Trajectory], states: Mapping[str, Json]) -> Repeats:
    """Comparison of the tasks that both sequences have, one episode each.

    `states`: final states by content address.
    """
    again = {trajectory.task: trajectory for trajectory in second}
    pairs = sorted(((each, again[each.task]) for each in first if each.task in again), key=lambda pair: pair[0].task)
    ends = ((one.task, _describe_ends(one, other, states)) for one, other in pairs)
    return Repeats(
        tasks=len(pairs),
        other_ends=tuple(f"{task}: {difference}" for task, difference in ends if difference),
        answers=tuple(answers for one, other in pairs for answers in _pair_answers(one, other)),
    )


def find_difference(answers: AnswerPair) -> AnswerDifference | None:
    """The first difference between two answers; None if they are equal."""
    if answers.first == answers.second:
        return None
    one, other = _split_volatile(answers.first), _split_volatile(answers.second)
    if one.masked == other.masked:
        pairs = zip(one.parts, other.parts, strict=True)
        kind, part = next(left for left, right in pairs if left != right)
        return AnswerDifference(tool=answers.tool, text=f"{kind} ({part})", volatile=True)
    return AnswerDifference(tool=answers.tool, text=_quote_both(one.masked, other.masked), volatile=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    masked: str
    """The text with the kind of each volatile part in its place."""
    parts: tuple[tuple[str, str], ...]
    """(kind, text) of each volatile part."""


def _split_volatile(text: str) -> _Split:
    parts: list[tuple[str, str]] = []

    def mask(found: re.Match[str]) -> str:
        kind = list(_VOLATILE)[(found.lastindex or 1) - 1]
        parts.append((kind, found[0]))
        return f"<{kind}>"

    return _Split(masked=_ANY_VOLATILE.sub(mask, text), parts=tuple(parts))


def _quote_both(first: str, second: str) -> str:
    """Both texts around their first difference."""
    shorter = min(len(first), len(second))
    place = next((n for n in range(shorter) if first[n] != second[n]), shorter)
    start = max(0, place - AROUND_CHARS)
    return f"{_quote(first, start, place)}, then {_quote(second, start, place)}"


def _quote(text: str, start: int, place: int) -> str:
    end = place + AROUND_CHARS
    return repr(f"{'...' if start else ''}{text[start:end]}{'...' if len(text) > end else ''}")


def _describe_ends(first: Trajectory, second: Trajectory, states: Mapping[str, Json]) -> str:
    """The first difference between two ends of a task; empty if there is none."""
    if first.score is None or second.score is None:
        return next(f"{each.outcome}: {each.reason}" for each in (first, second) if each.score is None)
    if first.score != second.score:
        return f"scored {first.score:g}, then {second.score:g}: {second.reason}"
    if first.final_key == second.final_key:
        return ""
    one, other = states.get(first.final_state or ""), states.get(second.final_state or "")
    difference = next(differences(one, other, STATE_RULE), None)
    if difference is None:
        return "the keys of the states differ, and what is recorded of them does not"
    place = ".".join(map(str, difference.path)) or "the state"
    left, right = ("absent" if value is ABSENT else brief(value) for value in (difference.left, difference.right))
    return f"{place} is {left}, then {right}"


def _pair_answers(first: Trajectory, second: Trajectory) -> Iterator[AnswerPair]:
    """The answers of both episodes, up to the end of the shorter one."""
    for (tool, one), (_, other) in zip(_read_answers(first), _read_answers(second), strict=False):
        yield AnswerPair(tool=tool, first=one, second=other)


def _read_answers(trajectory: Trajectory) -> Iterator[tuple[str, str]]:
    """(tool, text) of each answer that the agent got."""
    for step in trajectory.steps:
        names = {call.id: call.name for call in step.action.tool_calls}
        for result in step.results:
            yield names.get(result.call_id, ""), result.content
