"""Concurrency of episodes: slow and hung ones, free memory, and how their time is split."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import PolicyInfraError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import Action, Observation, Task, Trajectory

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
TASK = BANK.suite.tasks[0]

WAIT_S = 300.0
"""Timeout in seconds, far longer than any test here takes, so that a test that hangs fails."""

Deciding = Callable[[Observation], Awaitable[Action]]


class Doing:
    """An agent made of one function."""

    def __init__(self, decide: Deciding) -> None:
        self._decide = decide

    async def act(self, observation: Observation) -> Action:
        return await self._decide(observation)


def jobs(count: int) -> list[Job]:
    return [Job(task=TASK, trial=trial, seed=trial) for trial in range(count)]


def play(decide: Callable[[int, Observation], Awaitable[Action]], count: int, schedule: Schedule) -> list[Rollout]:
    """The trials in the order in which they ended; the seed tells an agent its trial."""
    ended: list[Rollout] = []

    def make(task: Task, seed: int) -> Agent:
        return Doing(lambda observation: decide(seed, observation))

    def record(result: Rollout, last: bool) -> None:
        ended.append(result)

    async def run() -> None:
        async with asyncio.timeout(WAIT_S):
            await run_jobs(BANK, get_sandbox("bwrap"), make, jobs(count), schedule, record)

    asyncio.run(run())
    return ended


def play_once(make: AgentFactory) -> Trajectory:
    return asyncio.run(rollout(BANK, get_sandbox("bwrap"), make, jobs(1)[0], timeout_s=WAIT_S)).trajectory


def test_a_slow_episode_does_not_delay_others() -> None:
    others_ended = asyncio.Event()
    acted = 0

    async def decide(trial: int, observation: Observation) -> Action:
        nonlocal acted
        if trial == 0:
            await others_ended.wait()
        else:
            acted += 1
            if acted == 7:
                others_ended.set()
        return Action(text="done")

    ended = play(decide, 8, Schedule(concurrency=2, min_free_mb=0.0))
    assert acted == 7
    assert len(ended) == 8
    assert {result.trajectory.outcome for result in ended} == {Outcome.SCORED}


def test_a_hung_episode_times_out_while_others_run() -> None:
    async def say_done(observation: Observation) -> Action:
        return Action(text="done")

    async def decide(trial: int, observation: Observation) -> Action:
        if trial == 0:
            await asyncio.Event().wait()
        return await say_done(observation)

    one_s = play_once(lambda task, seed: Doing(say_done)).usage.wall_s  # on this machine, as busy as it is
    schedule = Schedule(concurrency=2, episode_timeout_s=max(4.0, 25 * one_s), max_attempts=1, min_free_mb=0.0)
    ended = play(decide, 4, schedule)
    assert [(result.job.trial, result.trajectory.outcome) for result in ended][-1] == (0, Outcome.TIMEOUT)
    assert {result.trajectory.outcome for result in ended[:-1]} == {Outcome.SCORED}
    hung = ended[-1].trajectory.usage
    assert hung.agent_s > 0.5 * hung.wall_s


def test_without_free_memory_episodes_run_one_after_another() -> None:
    under_way, most = 0, 0

    async def decide(trial: int, observation: Observation) -> Action:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0)
        under_way -= 1
        return Action(text="done")

    async def sleepy(trial: int, observation: Observation) -> Action:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        if under_way < 4:
            await asyncio.wait_for(all_there.wait(), WAIT_S)
        else:
            all_there.set()
        under_way -= 1
        return Action(text="done")

    assert len(play(decide, 4, Schedule(concurrency=4, min_free_mb=1e12))) == 4
    assert most == 1
    all_there = asyncio.Event()
    assert len(play(sleepy, 4, Schedule(concurrency=4, min_free_mb=0.0))) == 4
    assert most == 4


def test_the_seconds_of_an_episode_are_split() -> None:
    usage = play_once(SCRIPTED["oracle"]).usage
    parts = (usage.reset_s, usage.agent_s, usage.tool_s, usage.grading_s, usage.harness_s)
    assert all(part > 0 for part in parts)
    assert abs(sum(parts) + usage.user_s - usage.wall_s) < 1e-6


def test_the_time_of_a_decision_that_never_came_is_counted() -> None:
    async def decide(observation: Observation) -> Action:
        await asyncio.to_thread(sum, range(1_000_000))
        raise PolicyInfraError("the model is gone")

    ended = play_once(lambda task, seed: Doing(decide))
    assert ended.outcome is Outcome.POLICY_INFRA
    assert ended.usage.agent_s > 0


def test_one_policy_version_is_one_group() -> None:
    names = {Job(task=TASK, trial=n, seed=n, policy_version="v2").group("bank") for n in range(3)}
    assert names == {f"bank/{TASK.id}/v2"}
    assert Job(task=TASK, trial=0, seed=0).group("bank") == f"bank/{TASK.id}"
