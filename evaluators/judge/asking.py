"""Ask a judge what the graders of an environment need to know, and keep its answers with the record."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gymcp.aio import keyed_lock
from gymcp.errors import PolicyInfraError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.judge.answers import Answer, JudgeAnswers, answer_key
from gymcp.evaluators.judge.rubric_grader import JudgeNotAsked, JudgeRequest
from gymcp.protocols import Grader, Judge, StateReader
from gymcp.types import Json, Sampling, Task, Trajectory

MAX_REQUESTS = 8
"""Most judges whose verdicts one grader combines."""
MAX_PROBLEM_CHARS = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeSeat:
    """The model that judges the episodes of a run."""

    name: str
    """Name of the model, without its address: the same model at another address gives the same answers."""
    judge: Judge
    answers: JudgeAnswers
    """Answers that were given before, and the file that keeps new ones."""
    timeout_s: float = 240.0
    """Maximum seconds for one answer, further attempts included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeAnswers:
    """Everything that a judge has said about one episode."""

    truths: Mapping[str, Json]
    """Ground truths of the record, with the answers."""
    cost: float
    """Cost of the answers that were asked for now."""


async def ask_judge(
    grader: Grader, task: Task, record: Trajectory, states: StateReader, seat: JudgeSeat
) -> EpisodeAnswers:
    """Ask for the answers that the grader lacks. `record`: the episode without a verdict.

    A judge that gives no answer is recorded as a problem, so that the grader says so; a later call asks again.
    """
    truths = {key: kept for key, kept in record.provenance.get(GROUND_TRUTHS, {}).items() if not _is_problem(kept)}
    costs: list[float] = []
    for _ in range(MAX_REQUESTS):
        seen = replace(record, provenance={**record.provenance, GROUND_TRUTHS: truths})
        try:
            grader(task, seen, states)
        except JudgeNotAsked as missing:
            truths[missing.request.key] = await _ask(missing.request, record, seat, costs)
        except Exception:  # whatever it is, grading says it
            break
        else:
            break
    return EpisodeAnswers(truths=truths, cost=math.fsum(costs))


def _is_problem(kept: Json) -> bool:
    return isinstance(kept, Mapping) and bool(kept.get("problem"))


async def _ask(request: JudgeRequest, record: Trajectory, seat: JudgeSeat, costs: list[float]) -> Json:
    """The answers to all votes, as the record keeps them."""
    answers: list[Answer | None] = []
    try:
        for vote, sampling in enumerate(request.ballots):
            answers.append(await _ask_once(request, vote, sampling, record, seat, costs))
    except TimeoutError:
        return request.record(seat.name, answers, f"the judge gave no answer within {seat.timeout_s:g} s")
    except Exception as error:  # the boundary to the judge's model: the other episodes go on
        why = str(error) if isinstance(error, PolicyInfraError) else f"{type(error).__name__}: {error}"
        return request.record(seat.name, answers, f"the judge gave no answer: {why}"[:MAX_PROBLEM_CHARS])
    return request.record(seat.name, answers)


async def _ask_once(
    request: JudgeRequest, vote: int, sampling: Sampling, record: Trajectory, seat: JudgeSeat, costs: list[float]
) -> Answer:
    """One answer: the recorded one if there is any, also of another episode that asks the same now.

    Raises PolicyInfraError, TimeoutError.
    """
    key = answer_key(request.question, seat.name, sampling)
    async with asyncio.timeout(seat.timeout_s), keyed_lock(f"answer {id(seat.answers)} {key}"):
        if (known := seat.answers.get(key)) is not None:
            return known
        text, spent = await seat.judge.ask(request.question.messages, sampling)
        answer = Answer(text=text, spent=spent, grader=request.key)
        costs.append(spent.cost if spent else 0.0)
        seat.answers.add(key, answer, {"episode": record.id, "vote": vote, "judge": seat.name})
        return answer
