"""Scores from a judge's answers: votes are counted, and an answer that is no verdict is never a 0."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gymcp.errors import GraderError
from gymcp.evaluators.judge.prompt import question
from gymcp.evaluators.judge.rubric import Point, Rubric
from gymcp.evaluators.names import JUDGE_PREFIX, JUDGE_UNANIMOUS, JUDGE_VERDICTS
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

MAX_REASON_CHARS = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Vote:
    points: Mapping[str, bool]
    """Verdict on each point; empty for a mark on a scale."""
    score: int
    reason: str


class NoVerdict(GraderError):
    """Not more than half of a judge's answers are verdicts."""


class InvalidVerdict(Exception):
    """An answer of a judge is no valid verdict; the message says why."""


def judge_grader(rubric: Rubric, answers: Mapping[str, Sequence[str | None]]) -> Grader:
    """Grader over recorded answers: by trajectory id, the text of each vote, None for a vote without an answer.

    A point is met if more than half of the verdicts say so; marks on a scale are averaged. Grading raises NoVerdict
    unless more than half of the votes are verdicts.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        asked = question(rubric, trajectory)
        points = rubric.points_of(trajectory.task)
        if not points and not rubric.scale:
            raise GraderError(f"judge: rubric '{rubric.name}' has no points for task '{trajectory.task}', and no scale")
        its_answers = answers.get(trajectory.id, ())
        votes, problems = [], []
        for answer in its_answers:
            try:
                votes.append(read_vote(answer, asked.mark, points, rubric.scale))
            except InvalidVerdict as error:
                problems.append(str(error))
        if 2 * len(votes) <= len(its_answers) or not votes:
            why = problems[0] if problems else "it was not asked"
            raise NoVerdict(f"judge: {len(votes)} of {len(its_answers)} answers are verdicts: {why}")
        return _score(votes, points, rubric.scale)

    return grade


def read_vote(answer: str | None, mark: str, points: Sequence[Point], scale: int) -> Vote:
    """The verdict at the end of an answer. Raises InvalidVerdict."""
    if answer is None:
        raise InvalidVerdict("no answer")
    verdict = _last_object(answer)
    if verdict is None:
        raise InvalidVerdict(f"no JSON object in {_quote(answer)}")
    if verdict.get("mark") != mark:
        raise InvalidVerdict(f"the mark is not this episode's: {_quote(answer)}")
    reason = verdict.get("reason", "")
    reason = reason[:MAX_REASON_CHARS] if isinstance(reason, str) else ""
    if not points:
        score = verdict.get("score")
        if not isinstance(score, int) or isinstance(score, bool) or not 0 <= score <= scale:
            raise InvalidVerdict(f"the score is {score!r}, not a whole number from 0 to {scale}")
        return Vote(points={}, score=score, reason=reason)
    met = verdict.get("points")
    if not isinstance(met, dict):
        raise InvalidVerdict("it has no points")
    for point in points:
        if not isinstance(met.get(point.id), bool):
            raise InvalidVerdict(f"point {point.id!r} is {met.get(point.id)!r}, not true or false")
    return Vote(points={point.id: met[point.id] for point in points}, score=0, reason=reason)


def _score(votes: Sequence[Vote], points: Sequence[Point], scale: int) -> Score:
    if points:
        shares = {point.id: sum(vote.points[point.id] for vote in votes) / len(votes) for point in points}
        met = [point for point in points if shares[point.id] > 0.5]
        value = math.fsum(point.weight for point in met) / math.fsum(point.weight for point in points)
        unanimous = all(share in (0.0, 1.0) for share in shares.values())
        components = {f"{JUDGE_PREFIX}{id}": share for id, share in shares.items()}
        missed = [point.text for point in points if point not in met]
        summary = f"meets {len(met)} of {len(points)} points" + (f"; not: {'; '.join(missed)}" if missed else "")
    else:
        value = math.fsum(vote.score for vote in votes) / (len(votes) * scale)
        unanimous = len({vote.score for vote in votes}) == 1
        components = {}
        summary = f"{value * scale:g} of {scale}"
    components |= {JUDGE_VERDICTS: float(len(votes)), JUDGE_UNANIMOUS: float(unanimous)}
    return Score(value=min(1.0, value), components=components, reason=f"judge: {summary}: {votes[0].reason}")


def _last_object(answer: str) -> dict[str, Json] | None:
    """The last complete JSON object in the text; the text before it is the judge's reasoning."""
    decoder = json.JSONDecoder()
    last: dict[str, Json] | None = None
    at = answer.find("{")
    while at >= 0:
        try:
            value, end = decoder.raw_decode(answer, at)
        except (ValueError, RecursionError):
            at = answer.find("{", at + 1)
            continue
        last = value if isinstance(value, dict) else last
        at = answer.find("{", end)
    return last


def _quote(answer: str) -> str:
    line = " ".join(answer.split())
    return repr(line if len(line) <= 120 else f"{line[:120]} [...]")
