"""Environments with third-party servers, on the real servers: tasks, scores of scripted agents, and leaks."""

from __future__ import annotations

import asyncio

import pytest

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs import LoadedEnv, load_env, load_spec
from gymcp.envs.audit.leaks import find_leaks
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox

ENVS = ("time", "sequential_thinking", "memory", "filesystem", "git")


@pytest.fixture(scope="session", params=ENVS)
def env(request: pytest.FixtureRequest, node: None) -> LoadedEnv:
    return load_env(load_spec(request.param))


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    found = get_sandbox("bwrap")
    found.check()
    return found


def test_there_are_many_tasks_and_always_the_same(env: LoadedEnv) -> None:
    tasks = env.suite.tasks
    assert len(tasks) >= 12
    assert len({task.id for task in tasks}) == len(tasks)
    assert load_env(env.spec).suite == env.suite
    assert all(task.gold and task.last_necessary and task.tags for task in tasks)


@pytest.mark.parametrize(("agent", "score"), [("oracle", 1.0), ("null", 0.0), ("mutated", 0.0)])
def test_scripted_agents_get_their_scores(agent: str, score: float, env: LoadedEnv, sandbox: Sandbox) -> None:
    """Every fourth task; `gymcp suites --check` plays all of them."""
    plan = Plan(agent=agent, sandbox=sandbox.name, tasks="*", limit=len(env.suite.tasks) // 4)
    ended: dict[str, float | None] = {}

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended[rollout.trajectory.task] = rollout.trajectory.score

    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    asyncio.run(run_jobs(env, sandbox, SCRIPTED[agent], jobs, Schedule(concurrency=4), note))
    assert ended == dict.fromkeys(ended, score)
    assert len(ended) == len(jobs)


def test_no_server_can_read_the_gold(env: LoadedEnv, sandbox: Sandbox) -> None:
    assert asyncio.run(find_leaks(env, sandbox)) == []
