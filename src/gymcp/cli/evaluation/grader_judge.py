"""The model that an environment's grader asks: option ``--judge`` of ``gymcp eval``, ``grade`` and ``check``."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace

from gymcp.agents.policies.judge_adapter import as_judge
from gymcp.agents.policies.specs import open_model
from gymcp.aio import hold_open
from gymcp.cli.configs import ModelConfig
from gymcp.cli.policy_options import PolicyPlan, plan_policy
from gymcp.envs.spec import LoadedEnv
from gymcp.evaluators.judge.answers import JudgeAnswers
from gymcp.evaluators.judge.asking import JudgeSeat
from gymcp.samples import REQUEST_TIMEOUT_S
from gymcp.types import Json

PATIENCE_FACTOR = 2.0
"""Seconds that an answer may take, further attempts included, as a multiple of ``--request-timeout``."""


def plan_judge(
    policy: str | None, model: ModelConfig | None = None, *, concurrency: int = 8, max_cost: float | None = None
) -> PolicyPlan | None:
    """The checked plan of the judge; None if none is named. Raises ConfigError.

    Of the model's options, those hold that are about its endpoint or engine: key, prices, timeouts, slots, device.
    """
    if policy is None:
        return None
    settings = model or ModelConfig()
    own = ModelConfig(
        prices=settings.prices,
        key_env=settings.key_env,
        requests_per_minute=settings.requests_per_minute,
        request_timeout_s=settings.request_timeout_s or REQUEST_TIMEOUT_S,
        slots=settings.slots,
        device=settings.device,
    )
    return plan_policy(policy, own, concurrency=concurrency, max_cost=max_cost)


def describe_models(user: PolicyPlan | None, judge: PolicyPlan | None) -> dict[str, Json]:
    """Entries of ``run.json`` about the models beside the agent's."""
    return {**(user.user_config() if user else {}), **({"judge": judge.spec.text} if judge else {})}


@contextlib.contextmanager
def add_judge(runner: asyncio.Runner, plan: PolicyPlan | None, env: LoadedEnv) -> Iterator[LoadedEnv]:
    """The environment with the plan's model as its judge; unchanged without a plan. Raises ConfigError."""
    with open_judge(runner, plan) as give_judge:
        yield give_judge(env)


@contextlib.contextmanager
def open_judge(runner: asyncio.Runner, plan: PolicyPlan | None) -> Iterator[Callable[[LoadedEnv], LoadedEnv]]:
    """A function that gives an environment the plan's model as its judge, or nothing without a plan.

    Raises ConfigError.
    """
    if plan is None:
        yield lambda env: env
        return
    with hold_open(runner, open_model(plan.spec, plan.options)) as model:
        seat = JudgeSeat(
            name=f"{plan.spec.kind}:{plan.spec.model}",
            judge=as_judge(model),
            answers=JudgeAnswers({}, None),
            timeout_s=PATIENCE_FACTOR * (plan.options.timeout_s or REQUEST_TIMEOUT_S),
        )
        yield lambda env: replace(env, judge=seat)
