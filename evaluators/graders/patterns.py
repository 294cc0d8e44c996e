"""A grader of the answer by a regular expression, in time linear in the answer's length."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from gymcp.errors import GraderError
from gymcp.evaluators.graders.answers import NEVER_SPOKE, final_answer
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import brief
from gymcp.protocols import Grader, StateReader
from gymcp.types import Score, Task, Trajectory

MAX_ANSWER_CHARS = 1_000_000
"""Most characters that are matched; a longer answer does not match."""


def answer_matches(*, target_key: str | None = None, whole: bool = True) -> Grader:
    """Grader: 1 if the task's target (or its entry `target_key`), a pattern, matches the final answer, else 0.

    `whole`: the pattern must match all of the answer but white space around it, else any part. Patterns are those of
    RE2, which never backtracks: no look-around and no references to groups. With Python's, an agent could stop the
    grader by an answer on which ``(a+)+$`` takes years. Grading raises GraderError if the target is no such pattern.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        pattern = target_of(task, target_key)
        if not isinstance(pattern, str):
            raise GraderError(f"task '{task.id}': the target is {brief(pattern)}, not a pattern")
        compiled = _compile(pattern)
        answer = final_answer(trajectory)
        if answer is None:
            return NEVER_SPOKE
        text = answer.strip().encode("utf-8", "replace").decode()  # lone surrogates are not for RE2
        is_match = len(text) <= MAX_ANSWER_CHARS and (compiled.fullmatch(text) if whole else compiled.search(text))
        if is_match:
            return Score(value=1.0, reason=f"the answer {brief(answer)} matches {pattern!r}")
        return Score(value=0.0, reason=f"the answer {brief(answer)} does not match {pattern!r}")

    return grade


@lru_cache(maxsize=1000)
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise GraderError(f"the target is no pattern of RE2: {pattern!r}: {error}") from error
