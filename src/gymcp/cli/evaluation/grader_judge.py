"""The model that an environment's grader asks: option ``--judge`` of ``gymcp eval``, ``grade`` and ``check``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gymcp.agents.policies.judge_adapter import as_judge
from gymcp.agents.policies.specs import open_model
from gymcp.aio import hold_open
from gymcp.cli.configs import ModelConfig
from gymcp.cli.policy_options import PolicyPlan, plan_policy
from gymcp.envs.spec import LoadedEnv
from gymcp.evaluators.judge.answers import JudgeAnswers, open_answers
from gymcp.evaluators.judge.asking import JudgeSeat

PATIENCE = 2.0
"""Seconds that an answer may take, further attempts included, as a multiple of ``--request-timeout``."""


def plan_judge(
    policy: str | None, model: ModelConfig | None = None, *, concurrency: int = 8, max_cost: float | None = None
) -> PolicyPlan | None:
    """The checked plan of the judge; None if none is named. Raises ConfigError.

    Of the model's options, those hold that are about its endpoint or engine: key, prices, timeouts, slots, device.
    """
    if policy is None:
        return None
    given = model or ModelConfig()
    own = ModelConfig(
        prices=given.prices,
        key_env=given.key_env,
        requests_per_minute=given.requests_per_minute,
        request_timeout_s=given.request_timeout_s,
        slots=given.slots,
        device=given.device,
    )
    return plan_policy(policy, own, concurrency=concurrency, max_cost=max_cost)


@contextlib.contextmanager
def add_judge(runner: asyncio.Runner, plan: PolicyPlan | None, env: LoadedEnv) -> Iterator[LoadedEnv]:
    """The environment with the plan's model as its judge; unchanged without a plan. Raises ConfigError."""
    if plan is None:
        yield env
        return
    with hold_open(runner, open_model(plan.spec, plan.options)) as model:
        seat = JudgeSeat(
            name=f"{plan.spec.kind}:{plan.spec.model}",
            judge=as_judge(model),
            answers=JudgeAnswers({}, None),
            timeout_s=PATIENCE * plan.options.timeout_s,
        )
        yield replace(env, judge=seat)


@contextlib.contextmanager
def keep_answers(env: LoadedEnv, folder: Path) -> Iterator[LoadedEnv]:
    """The environment with a judge whose answers are kept in the run folder. Raises StoreError."""
    if env.judge is None:
        yield env
        return
    with open_answers(folder) as answers:
        yield replace(env, judge=replace(env.judge, answers=answers))
