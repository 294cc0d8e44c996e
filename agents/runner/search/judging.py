"""Values of a search from a model that judges its episodes by a rubric, or from a trained head."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gymcp.agents.runner.search.searches import Search
from gymcp.agents.runner.search.values import JUDGE, STEP_VALUE
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.judge.asking import JudgeSeat, ask_judge
from gymcp.evaluators.judge.rubric_grader import judge_by_rubric
from gymcp.paths import find_page
from gymcp.types import Json, Task, Trajectory

JudgeEpisode = Callable[[Task, Trajectory], Awaitable[float | None]]
"""Gives the judge's score of an episode without a verdict, from 0 to 1; None if the judge gave no verdict."""


def make_episode_judge(search: Search, seat: JudgeSeat | None, budget: RunBudget) -> JudgeEpisode | None:
    """The judge or the head that values the search's episodes; None for a search by another value.

    The budget pays for a judge, and a question that was asked before is answered from what is kept. Raises ConfigError
    without a judge, or a head.
    """
    if search.value == STEP_VALUE:
        return _ask_head(search)
    if search.rubric is None:
        return None
    if seat is None:
        raise ConfigError(
            f"search {search.name}: value={JUDGE} asks a model, and none is named; give one: --judge openai:URL#MODEL"
        )
    judge, grader = seat, judge_by_rubric(search.rubric, votes=search.votes)

    async def judge_episode(task: Task, record: Trajectory) -> float | None:
        asked = await ask_judge(grader, task, record, _read_no_state, judge)
        budget.spend(asked.cost)
        answered = replace(record, provenance={GROUND_TRUTHS: asked.truths})
        return apply_grader(grader, task, answered, _read_no_state).score

    return judge_episode


def _ask_head(search: Search) -> JudgeEpisode:
    rater = search.rater
    if rater is None:
        raise ConfigError(
            f"search {search.name}: value={STEP_VALUE} comes from a trained head, and none is given; name the folder of"
            f" one: head=FOLDER ({find_page('search.md')})"
        )

    async def ask(task: Task, record: Trajectory) -> float:
        return await asyncio.to_thread(rater.rate, record)

    return ask


def _read_no_state(ref: str) -> Json:
    raise KeyError(ref)
