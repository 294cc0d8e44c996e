"""The model that judges the episodes of a training run, if the environment's grader asks one."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path

from gymcp.agents.policies.judge_adapter import as_judge
from gymcp.agents.policies.specs import ModelOptions, open_model, parse_policy
from gymcp.envs.spec import LoadedEnv
from gymcp.evaluators.judge.answers import JudgeAnswers, open_answers
from gymcp.evaluators.judge.asking import JudgeSeat
from gymcp.samples import KEY_VARIABLE, REQUEST_TIMEOUT_S
from gymcp.trainers.recipe.recipe import Recipe


@asynccontextmanager
async def open_judge(recipe: Recipe, env: LoadedEnv, folder: Path | None) -> AsyncIterator[LoadedEnv]:
    """The environment with the judge that the recipe names; unchanged if it names none.

    The judge's answers are kept in the run's `folder`, if there is one, so that a run that goes on asks nothing twice.
    Raises ConfigError for a judge that does not answer.
    """
    if not recipe.reward.judge:
        yield env
        return
    spec = parse_policy(recipe.reward.judge)
    key = os.environ.get(KEY_VARIABLE, "").strip() or None
    options = ModelOptions(key=key, timeout_s=REQUEST_TIMEOUT_S)
    with ExitStack() as stack:
        answers = stack.enter_context(open_answers(folder)) if folder is not None else JudgeAnswers({}, None)
        async with open_model(spec, options) as model:
            seat = JudgeSeat(name=f"{spec.kind}:{spec.model}", judge=as_judge(model), answers=answers)
            yield replace(env, judge=seat)
