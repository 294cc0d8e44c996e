"""A run of ``gymcp eval --ray`` as its driver sees it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gymcp.agents.policies.specs import read_without_weights
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.run import PlayedElsewhere
from gymcp.agents.strategies.budgets import RunBudget, limit_agent_time
from gymcp.cli.evaluation.cluster.needed_files import find_model_files, find_needed_files
from gymcp.cli.evaluation.cluster.node import open_play
from gymcp.cli.evaluation.cluster.placement import describe_plan, load_plan, place_groups
from gymcp.cli.evaluation.eval_run import PreparedRun
from gymcp.cli.policy_options import OpenedModel
from gymcp.envs.catalog import source_of
from gymcp.errors import ConfigError, UsageError
from gymcp.scale.copies.collect import FileCollector
from gymcp.scale.distribution import AnswerQuestion, DistributionSettings, answer_nothing, distribute
from gymcp.scale.plan import PolicyPlace, RunPlan, check_policies
from gymcp.scale.questions import SampleQuestion
from gymcp.scale.ray_calls import connect_ray, list_cluster
from gymcp.scale.ray_cluster import RayPool, RunToOpen
from gymcp.scale.ray_policy import RayPolicyOpener
from gymcp.scale.reopened_policy import ReopenedPolicy
from gymcp.scale.served_model import check_servable
from gymcp.types import Sampled, Sampling


@contextlib.contextmanager
def open_cluster(prepared: PreparedRun) -> Iterator[PlayedElsewhere]:
    """Plays jobs on the nodes of the cluster of ``--ray``, all of which have opened the run. Raises ConfigError."""
    config = prepared.config
    plan = load_plan(config.plan)
    check_policies(plan, describe_plan(config.plan), config.policy)
    _check_engine(plan, prepared)
    settings = DistributionSettings(
        env=prepared.env.spec.name,
        concurrency=prepared.schedule.concurrency,
        known_tasks={task.id: task for task in prepared.env.suite.tasks},
        max_losses=prepared.schedule.max_attempts,
    )
    on_nodes = replace(
        config,
        env=source_of(config.env),
        concurrency=prepared.schedule.concurrency,
        out=None,
        resume=False,
        ray=None,
        plan=None,
    )
    collector = FileCollector()
    files = find_needed_files(prepared, collector, with_model=plan.policy is None)
    with connect_ray(config.ray or "auto"), contextlib.ExitStack() as stack:
        find_group = place_groups(plan, config.plan, config.env, list_cluster())
        for note in collector.notes:
            say(note)
        answer, opened = stack.enter_context(_open_policy(plan.policy, prepared))
        opening = partial(open_play, on_nodes, opened)
        run = RunToOpen(open_play=opening, config=prepared.recorded, files=files, find_group=find_group)
        pool = RayPool(run, say=say)
        asyncio.run(pool.open_first())

        def play(
            jobs: Sequence[Job], on_rollout: Callable[[Rollout, bool], None], budget: RunBudget
        ) -> Coroutine[None, None, None]:
            return distribute(pool, jobs, on_rollout, budget, settings, answer)

        yield PlayedElsewhere(play=play)


@contextlib.contextmanager
def _open_policy(
    place: PolicyPlace | None, prepared: PreparedRun
) -> Iterator[tuple[AnswerQuestion, OpenedModel | None]]:
    """The agent's model on the node that the plan chooses, as answers to questions of nodes, and without its policy.

    Without a place there are no answers: each node opens the model, or reaches it. Raises ConfigError.
    """
    planned = prepared.agent.policy
    if place is None or planned is None:
        yield answer_nothing, None
        return
    model = read_without_weights(planned.spec, planned.options)
    opener = RayPolicyOpener(planned.spec, planned.options, place, find_model_files(planned), say)
    agent_s = limit_agent_time(prepared.env.spec.limits, prepared.schedule.agent_s)
    limit_s = min(agent_s, planned.options.timeout_s or agent_s)
    policy = ReopenedPolicy(planned.spec.who, opener.open, limit_s)

    async def open_and_try() -> None:
        await policy.open()
        await policy.sample(model.renderer.tokenizer.encode("Hello"), Sampling(max_tokens=1))

    async def answer(question: Any) -> Sampled:
        assert isinstance(question, SampleQuestion)
        return await policy.sample(question.prompt_ids, question.sampling, question.wait_s)

    try:
        asyncio.run(open_and_try())
        model = replace(model, context=min(model.context, opener.context))
        yield answer, OpenedModel(model=model, weights=prepared.recorded.get("weights", ""))
    finally:
        asyncio.run(policy.close())


def _check_engine(plan: RunPlan, prepared: PreparedRun) -> None:
    """Raise ConfigError if the plan asks for a vLLM server that cannot sample the model."""
    planned = prepared.agent.policy
    if plan.policy is None or plan.policy.engine != "vllm" or planned is None:
        return
    try:
        check_servable(planned.spec, planned.settings.sampling)
    except UsageError as error:
        raise ConfigError(f"{describe_plan(prepared.config.plan)}: policy.engine: {error}") from error


def say(line: str) -> None:
    """Print a line about the nodes."""
    print(f"gymcp: {line}", file=sys.stderr)
