"""A language model's verdict as the grader of an environment.

A grader is a pure function of the record, so it sends no request. If the record lacks the judge's answers, it raises
`JudgeNotAsked` with the question; the runner asks (`gymcp.evaluators.judge.asking`), puts the answers into the record
and grades again. From then on the score follows from the record alone.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.judge.answers import Answer
from gymcp.evaluators.judge.prompt import PROMPT_VERSION, Question, question
from gymcp.evaluators.judge.rubric import Rubric, load_rubric
from gymcp.evaluators.judge.verdict import judge_grader
from gymcp.protocols import Grader, StateReader
from gymcp.store.record_json import require_list
from gymcp.store.validation import require_text
from gymcp.types import Json, Sampling, Score, Task, Trajectory

MAX_VOTES = 99


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """The votes that a grader needs on one episode."""

    key: str
    """Name under which the answers are kept with the record, among the ground truths."""
    question: Question
    ballots: tuple[Sampling, ...]
    """Sampling settings of each vote."""

    def record(self, judge: str, answers: list[Answer | None], problem: str = "") -> Json:
        """The answers as the record keeps them; None for a vote without an answer, and then `problem` says why."""
        return {
            "question": digest_question(self.question),
            "judge": judge,
            "answers": [None if answer is None else answer.text for answer in answers],
            "spent": [None if answer is None or not answer.spent else asdict(answer.spent) for answer in answers],
            "problem": problem,
        }


class JudgeNotAsked(GraderError):
    """The record has no answer of a judge. Names the `request` to make."""

    def __init__(self, message: str, request: JudgeRequest) -> None:
        super().__init__(message)
        self.request = request


class JudgeSilent(GraderError):
    """A judge was asked and gave no answer."""


def judge_by_rubric(
    rubric: Rubric | Path | str, *, votes: int = 1, temperature: float | None = None, max_tokens: int = 1024
) -> Grader:
    """Grader: a model's verdict by the rubric, or by the TOML file that holds it.

    The model is named when the environment is run (``--judge``), and asked once for each vote; its answers are kept
    with the record, so grading again sends no request. `temperature` None: 0 for one vote, 1 for several. Without
    answers, or unless more than half of them are verdicts, the episode has no score: never 0. Raises ConfigError for a
    rubric that cannot be used.
    """
    used = rubric if isinstance(rubric, Rubric) else load_rubric(Path(rubric))
    if not 1 <= votes <= MAX_VOTES:
        raise ConfigError(f"judge_by_rubric: votes must be from 1 to {MAX_VOTES}, not {votes}")
    sampling = Sampling(max_tokens=max_tokens, temperature=float(votes > 1) if temperature is None else temperature)
    ballots = tuple(replace(sampling, seed=vote) for vote in range(votes))
    key = f"judge {used.name}/{used.version}"

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        asked = question(used, trajectory)
        kept = trajectory.provenance.get(GROUND_TRUTHS, {}).get(key)
        request = JudgeRequest(key=key, question=asked, ballots=ballots)
        answers = _read_answers(kept, request, f"rubric '{used.name}'")
        score = judge_grader(used, {trajectory.id: answers})(task, trajectory, states)
        return replace(score, ground_truths={**score.ground_truths, key: kept})

    return grade


def digest_question(asked: Question) -> str:
    """Hash of every word of the question and of the version of the prompt."""
    words = [PROMPT_VERSION, *([message.role, message.content] for message in asked.messages)]
    return hashlib.sha256(json.dumps(words).encode()).hexdigest()


def _read_answers(kept: Json, request: JudgeRequest, who: str) -> list[str | None]:
    """The recorded text of each vote. Raises JudgeNotAsked if it is of another question, JudgeSilent if one lacks."""
    if not isinstance(kept, Mapping):
        raise JudgeNotAsked(f"{who}: no judge was asked: name the model with --judge", request)
    another = f"{who}: the answers on record are to another question: name the model with --judge"
    if kept.get("question") != digest_question(request.question):
        raise JudgeNotAsked(another, request)
    if problem := kept.get("problem"):
        raise JudgeSilent(f"{who}: {require_text(problem, 'problem')}")
    answers = require_list(kept.get("answers"))
    if len(answers) != len(request.ballots):
        raise JudgeNotAsked(another, request)
    return [None if answer is None else require_text(answer, "answer") for answer in answers]
