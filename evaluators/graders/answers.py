"""Graders of the agent's final answer: a text, a number, or JSON."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import deque

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import brief, first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

NEVER_SPOKE = Score(value=0.0, reason="the agent never spoke")

# neither can be made to go back and forth: every character is read a bounded number of times
_NUMBER = re.compile(
    r"(?<![\w.])[-+]?(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
)
_FENCED = re.compile(r"^```[a-zA-Z]*[ \t]*\n((?:(?!^```).*\n)*)^```[ \t]*$", re.MULTILINE)


def answer_equals(*, target_key: str | None = None, exact: bool = False) -> Grader:
    """Grader: 1 if the final answer equals the task's target (or its entry `target_key`), else 0.

    The target is a text, or a list of accepted texts. Texts are compared after `normalise_answer`, or with `exact` as
    they are. Grading raises GraderError if the target is anything else.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        accepted = _texts(target_of(task, target_key))
        answer = final_answer(trajectory)
        if answer is None:
            return NEVER_SPOKE
        same = (lambda text: text) if exact else normalise_answer
        if same(answer) in {same(text) for text in accepted}:
            return Score(value=1.0, reason=f"the answer is {brief(answer)}, as wanted")
        return Score(value=0.0, reason=f"the answer is {brief(answer)}, wanted {' or '.join(map(brief, accepted))}")

    return grade


def answer_is_number(*, target_key: str | None = None, tolerance: float = 0.0, relative: float = 0.0) -> Grader:
    """Grader: 1 if the last number in the final answer is the task's target (or its entry `target_key`), else 0.

    The target is a number, or a list of accepted numbers. A number is accepted if it differs by at most `tolerance`, or
    by at most `relative` times the target's size. docs/evaluation.md says what is read as a number. Raises ConfigError
    for a tolerance below 0; grading raises GraderError if the target is anything else.
    """
    if not (0 <= tolerance < math.inf and 0 <= relative < math.inf):
        raise ConfigError(f"answer_is_number: the tolerances are {tolerance} and {relative}, not numbers from 0 on")

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        accepted = _numbers(target_of(task, target_key))
        answer = final_answer(trajectory)
        if answer is None:
            return NEVER_SPOKE
        number = last_number(answer)
        if number is None:
            return Score(value=0.0, reason=f"the answer {brief(answer)} holds no number")
        if any(abs(number - each) <= max(tolerance, relative * abs(each)) for each in accepted):
            return Score(value=1.0, reason=f"the answer is {number:.12g}, as wanted")
        return Score(value=0.0, reason=f"the answer is {number:.12g}, wanted {' or '.join(map(brief, accepted))}")

    return grade


def answer_includes_json(*, target_key: str | None = None) -> Grader:
    """Grader: 1 if the final answer is JSON that includes the task's target (or its entry `target_key`), else 0.

    Objects may have more keys than the target's, at any depth; lists must have as many items. The JSON may stand in a
    fenced block of Markdown; the last block counts.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected = target_of(task, target_key)
        answer = final_answer(trajectory)
        if answer is None:
            return NEVER_SPOKE
        try:
            value = read_json(answer)
        except ValueError as error:
            return Score(value=0.0, reason=f"the answer {brief(answer)} is not JSON: {error}")
        if difference := first_difference(value, expected, more_keys=True):
            return Score(value=0.0, reason=f"in the answer {difference}")
        return Score(value=1.0, reason="the answer has all that is wanted")

    return grade


def final_answer(trajectory: Trajectory) -> str | None:
    """Text of the agent's last usable step without a tool call; None if there is none."""
    for step in reversed(trajectory.steps):
        if step.valid and not step.action.tool_calls:
            return step.action.text
    return None


def normalise_answer(text: str) -> str:
    """The text without differences that do not matter: case, width, repeated white space, quotes around it, stops after
    it."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.lstrip("\"'` ").rstrip("\"'`. ")


def last_number(text: str) -> float | None:
    """The last number in the text; None if there is none or it exceeds the range of a float.

    Full-width digits and the typographic minus sign are read as well; a comma counts if groups of three digits follow.
    """
    plain = unicodedata.normalize("NFKC", text).replace("\N{MINUS SIGN}", "-")
    last_match = deque(_NUMBER.finditer(plain), maxlen=1)
    value = float(last_match[0][0].replace(",", "")) if last_match else math.inf
    return value if math.isfinite(value) else None


def read_json(text: str) -> Json:
    """JSON value of the text, or of its last fenced block.

    Raises ValueError for anything else: trailing text, NaN, a key twice in one object, or nesting that is too deep.
    """
    blocks = _FENCED.findall(text)
    try:
        return json.loads(blocks[-1] if blocks else text, object_pairs_hook=_once, parse_constant=_refuse)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def _once(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    unique = dict(pairs)
    if len(unique) < len(pairs):
        raise ValueError("a key is twice in one object")
    return unique


def _refuse(constant: str) -> Json:
    raise ValueError(f"{constant} is no JSON")


def _numbers(target: Json) -> tuple[float, ...]:
    numbers = target if isinstance(target, list | tuple) else (target,)
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
            raise GraderError(f"the target is {brief(target)}, not a number or a list of numbers")
    if not numbers:
        raise GraderError("the target has no number")
    return tuple(numbers)


def _texts(target: Json) -> tuple[str, ...]:
    texts = (target,) if isinstance(target, str) else target
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise GraderError(f"the target is {brief(target)}, not a text or a list of texts")
    # an empty answer would be right for a target of which normalising leaves nothing
    if not all(normalise_answer(text) for text in texts):
        raise GraderError("the target has an empty text")
    return tuple(texts)
