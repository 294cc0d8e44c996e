"""Workers that play real episodes in processes of their own, and a driver whose lines to them break."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial

import pytest
from worker_nodes import BANK, BROKEN, CONCURRENCY, WAIT_S, Pool, WorkerNode, open_bank

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import load_env
from gymcp.errors import ConfigError, EnvInfraError, NodeLost
from gymcp.outcome import Outcome
from gymcp.scale.distribution import NODE_KEY, DistributionSettings, distribute, open_distribution
from gymcp.scale.records import Lease
from gymcp.scale.worker import Worker

TASKS = load_env(load_spec(BANK)).suite.tasks


def jobs(count: int) -> list[Job]:
    return [Job(task=TASKS[trial % 3], trial=trial, seed=trial) for trial in range(count)]


def play(pool: Pool, count: int, *, rejoin_s: float = 0.0) -> list[tuple[Rollout, bool]]:
    """The attempts in the order in which they were recorded, and whether each was its job's last one."""
    recorded: list[tuple[Rollout, bool]] = []
    settings = DistributionSettings(env="bank", concurrency=CONCURRENCY, rejoin_s=rejoin_s)

    def keep(rollout: Rollout, last: bool) -> None:
        recorded.append((rollout, last))

    async def run() -> None:
        async with asyncio.timeout(WAIT_S):
            await distribute(pool, jobs(count), keep, RunBudget(), settings)

    asyncio.run(run())
    return recorded


def test_every_job_is_played_once_and_says_on_which_node() -> None:
    recorded = play(Pool(WorkerNode("a"), WorkerNode("b")), 60)
    assert sorted(rollout.job.trial for rollout, _ in recorded) == list(range(60))
    assert {(rollout.trajectory.score, last) for rollout, last in recorded} == {(1.0, True)}
    assert {rollout.trajectory.provenance[NODE_KEY] for rollout, _ in recorded} == {"a", "b"}


def test_an_answer_that_is_lost_costs_an_attempt_and_no_episode() -> None:
    recorded = play(Pool(WorkerNode("a", loses_answer=2), WorkerNode("b")), 24)
    kept = Counter(rollout.job.trial for rollout, _ in recorded if rollout.trajectory.outcome is Outcome.SCORED)
    assert kept == Counter(range(24))
    lost = [rollout.trajectory for rollout, last in recorded if not last]
    assert {(row.outcome, row.score, row.reason) for row in lost} == {
        (Outcome.ENV_INFRA, None, "node a was lost: the answer was lost on its way")
    }


def test_a_machine_on_which_all_fails_is_left_out_and_its_episodes_are_played_elsewhere() -> None:
    recorded = play(Pool(WorkerNode("bad", BROKEN), WorkerNode("good")), 24)
    assert Counter(rollout.job.trial for rollout, last in recorded if last) == Counter(range(24))
    assert {rollout.trajectory.score for rollout, last in recorded if last} == {1.0}
    failed = [rollout.trajectory.reason for rollout, last in recorded if not last]
    assert failed
    assert all(reason.startswith("node bad") for reason in failed)


def test_without_a_node_the_run_ends_with_an_error() -> None:
    with pytest.raises(NodeLost, match="no node is left"):
        play(Pool(WorkerNode("a", loses_answer=1)), 24)


def test_a_node_that_joins_later_takes_over() -> None:
    recorded = play(Pool(WorkerNode("a", loses_answer=1), late=WorkerNode("b")), 24, rejoin_s=WAIT_S)
    assert Counter(rollout.job.trial for rollout, last in recorded if last) == Counter(range(24))
    assert {rollout.trajectory.provenance[NODE_KEY] for rollout, last in recorded if last} == {"b"}


def test_jobs_of_a_source_are_taken_as_places_become_free() -> None:
    waiting, under_way, most = jobs(12), 0, 0
    played: list[int] = []

    class Source:
        async def take(self) -> Job | None:
            nonlocal under_way, most
            if not waiting:
                return None
            under_way += 1
            most = max(most, under_way)
            return waiting.pop(0)

    def keep(rollout: Rollout, last: bool) -> None:
        nonlocal under_way
        under_way -= 1
        played.append(rollout.job.trial)

    async def run() -> None:
        settings = DistributionSettings(env="bank", concurrency=CONCURRENCY)
        async with open_distribution(Pool(WorkerNode("a")), RunBudget(), settings) as distribution:
            await distribution.play(Source(), keep)

    asyncio.run(run())
    assert sorted(played) == list(range(12))
    assert most == CONCURRENCY + 1, "one waits, so that no free place does"


def test_money_that_is_spent_elsewhere_stops_a_worker() -> None:
    worker = Worker(partial(open_bank, cost=5.0))
    worker.wait_until_open(WAIT_S)
    (job,) = jobs(1)
    lease = Lease(number=1, task=job.task.id, trial=0, seed=0, policy_version="")
    assert not worker.exchange([lease], 0, 4.0).is_over
    assert worker.exchange([], 1, 5.0).is_over
    worker.close()
    with pytest.raises(EnvInfraError, match="has ended"):
        worker.exchange([], 1, 0.0)


def test_a_run_that_fails_to_open_says_why() -> None:
    worker = Worker(partial(open_bank, name="no-such-bank"))
    with pytest.raises(ConfigError, match="no-such-bank"):
        worker.wait_until_open(WAIT_S)
    with pytest.raises(ConfigError, match="no-such-bank"):
        worker.exchange([], 0, 0.0)
