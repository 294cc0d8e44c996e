"""Environments with third-party servers, on the real servers: tasks, scores of scripted agents, and leaks."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.aio import hold_open
from gymcp.envs import LoadedEnv, load_env, load_spec
from gymcp.envs.audit.leaks import find_leaks
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox

NAMES = ("time", "sequential_thinking", "memory", "filesystem", "git")
ENVS = [pytest.param(name, marks=pytest.mark.xdist_group(f"third_party-{name}")) for name in NAMES]
"""One process plays all agents on an environment: its servers are imported once."""


@pytest.fixture(scope="session", params=ENVS)
def env(request: pytest.FixtureRequest, node: None) -> LoadedEnv:
    return load_env(load_spec(request.param))


@pytest.fixture(scope="session")
def sandbox() -> Sandbox:
    found = get_sandbox("bwrap")
    found.check()
    return found


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def warm(env: LoadedEnv, sandbox: Sandbox, runner: asyncio.Runner) -> Iterator[Sandbox]:
    with hold_open(runner, open_warm_sandbox(sandbox)) as warm:
        yield warm


def test_there_are_many_tasks_and_always_the_same(env: LoadedEnv) -> None:
    tasks = env.suite.tasks
    assert len(tasks) >= 12
    assert len({task.id for task in tasks}) == len(tasks)
    assert load_env(env.spec).suite == env.suite
    assert all(task.gold and task.last_necessary and task.tags for task in tasks)


@pytest.mark.parametrize(("agent", "score"), [("oracle", 1.0), ("null", 0.0), ("mutated", 0.0)])
def test_scripted_agents_get_their_scores(
    agent: str, score: float, env: LoadedEnv, warm: Sandbox, runner: asyncio.Runner
) -> None:
    """A few tasks; `gymcp suites --check` plays all of them."""
    plan = Plan(agent=agent, sandbox=warm.name, tasks="*", limit=3)
    ended: dict[str, float | None] = {}

    def note(rollout: Rollout, last: bool) -> None:
        if last:
            ended[rollout.trajectory.task] = rollout.trajectory.score

    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    runner.run(run_jobs(env, warm, SCRIPTED[agent], jobs, Schedule(concurrency=4), note))
    assert ended == dict.fromkeys(ended, score)
    assert len(ended) == len(jobs)


def test_no_server_can_read_the_gold(env: LoadedEnv, sandbox: Sandbox) -> None:
    assert asyncio.run(find_leaks(env, sandbox)) == []
