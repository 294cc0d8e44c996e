"""Concurrency of episodes: slow and hung ones, free memory, and how their time is split."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import MAX_SECONDS, RunBudget, limit_agent_time
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import PolicyInfraError
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import Agent, AgentFactory, UserView
from gymcp.types import Action, EpisodeLimits, ModelUsage, Observation, SideAnswer, Task, Trajectory

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


async def say_done(trial: int, observation: Observation) -> Action:
    return Action(text="done")


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be put forward."""

    ahead_s = 0.0

    def time(self) -> float:
        return super().time() + self.ahead_s


def pass_time(seconds: float) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, JumpingLoop)
    loop.ahead_s += seconds


def play_on(decide: Deciding, env: LoadedEnv = BANK, **limits: float) -> Trajectory:
    """One episode on a loop whose clock can be put forward; `limits` as `rollout` takes them."""

    async def run() -> Trajectory:
        played = await rollout(env, get_sandbox("bwrap"), lambda task, seed: Doing(decide), jobs(1)[0], **limits)  # type: ignore[arg-type]
        return played.trajectory

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(run())


def test_the_time_of_an_agent_is_not_the_harness_s() -> None:
    """A model that thinks for an hour and a half is scored, though the harness has ten minutes of its own."""

    async def decide(observation: Observation) -> Action:
        for _ in range(3):
            pass_time(1_800)
            await asyncio.sleep(0.01)
        return Action(text="done")

    ended = play_on(decide, timeout_s=600, agent_s=6_000)
    assert (ended.outcome, ended.score) == (Outcome.SCORED, 0.0)


def test_an_agent_that_has_used_up_its_time_is_graded() -> None:
    async def decide(observation: Observation) -> Action:
        pass_time(MAX_SECONDS + 1)
        await asyncio.Event().wait()
        raise AssertionError

    ended = play_on(decide, timeout_s=600)
    assert (ended.outcome, ended.score) == (Outcome.BUDGET_EXHAUSTED, 0.0)
    assert "out of budget (3600 s of the agent's time)" in ended.reason


@pytest.mark.parametrize(
    ("own", "given", "limit"),
    [(None, None, MAX_SECONDS), (None, 50.0, 50.0), (7200.0, None, 7200.0), (60.0, 90.0, 60.0)],
)
def test_the_limit_of_the_environment_can_only_be_lowered(own: float | None, given: float | None, limit: float) -> None:
    assert limit_agent_time(EpisodeLimits(agent_s=own), given) == limit


def test_an_agent_that_never_answers_ends_by_its_time_while_others_run() -> None:
    async def decide(trial: int, observation: Observation) -> Action:
        if trial == 0:
            await asyncio.Event().wait()
        return await say_done(trial, observation)

    ended = play(decide, 4, Schedule(concurrency=2, agent_s=1.0, min_free_mb=0.0))
    outcomes = {result.job.trial: result.trajectory.outcome for result in ended}
    assert outcomes == {0: Outcome.BUDGET_EXHAUSTED, **dict.fromkeys((1, 2, 3), Outcome.SCORED)}
    hung = next(result.trajectory for result in ended if result.job.trial == 0)
    assert "1 s of the agent's time" in hung.reason
    assert 0.9 < hung.usage.agent_s <= hung.usage.wall_s


class Beside(Doing):
    """An agent whose model has given two answers that no decision hands over."""

    __module__ = "gymcp.agents.programs"  # only gymcp's own agents can have this module

    def __init__(self, decide: Deciding) -> None:
        super().__init__(decide)
        spent = ModelUsage(model="m", prompt_tokens=10, completion_tokens=1, cost=0.5)
        self.rest: tuple[SideAnswer, ...] = (SideAnswer(context=0, action=Action(text="Hm."), spent=spent),) * 2

    def take_rest(self) -> tuple[SideAnswer, ...]:
        rest, self.rest = self.rest, ()
        return rest


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (None, Outcome.BUDGET_EXHAUSTED),
        (PolicyInfraError("the engine is down"), Outcome.POLICY_INFRA),
        (asyncio.CancelledError(), Outcome.CANCELLED),
    ],
)
def test_answers_that_no_decision_hands_over_are_recorded_and_paid(
    error: BaseException | None, outcome: Outcome
) -> None:
    async def decide(observation: Observation) -> Action:
        if error is not None:
            raise error
        await asyncio.Event().wait()
        raise AssertionError

    budget = RunBudget(cost=1.0)
    playing = rollout(
        BANK,
        get_sandbox("bwrap"),
        lambda task, seed: Beside(decide),
        jobs(1)[0],
        timeout_s=WAIT_S,
        agent_s=0.5,
        budget=budget,
    )
    record = asyncio.run(playing).trajectory
    assert (record.outcome, len(record.side_answers)) == (outcome, 2)
    assert (record.usage.cost, budget.is_spent) == (1.0, True)


def test_a_slow_user_costs_the_harness_no_time() -> None:
    class SlowUser:
        """A user, as a model would play it, who takes an hour for every word."""

        async def reply(self, view: UserView) -> Action | None:
            pass_time(3_600)
            await asyncio.sleep(0.01)
            return None if view.messages else Action(text="Pay Bob.")

    async def decide(observation: Observation) -> Action:
        return Action(text="done")

    env = replace(BANK, spec=replace(BANK.spec, user=lambda task: SlowUser()))
    assert play_on(decide, env, timeout_s=600).outcome is Outcome.SCORED


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
