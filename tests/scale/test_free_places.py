"""A free place of a node gets a job that comes while the driver waits for the node's news, without another exchange."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from test_lost_nodes import TASK, WAIT_S, DyingNode, FakeNode
from worker_nodes import Pool

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.scale import distribution
from gymcp.scale.distribution import DistributionSettings, open_distribution
from gymcp.scale.records import Lease, NodePool, Report


class WaitingNode(FakeNode):
    """A node that has no news before it has so many jobs; its exchange would last for ever without them."""

    def __init__(self, name: str, jobs: int) -> None:
        super().__init__(name)
        self._jobs = jobs
        self._is_whole = asyncio.Event()
        self._has: list[Lease] = []
        self.messages: list[int] = []
        """Number of leases in each message: of an exchange first, then beside it."""
        self.exchanges = 0
        self.may_lend = asyncio.Event()
        self.may_lend.set()

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        self.exchanges += 1
        self._take(leases)
        self.was_lent.set()
        await self._is_whole.wait()
        has, self._has = self._has, []
        return Report(finished=tuple(self._finish(lease) for lease in has))

    async def lend(self, leases: Sequence[Lease]) -> None:
        self._take(leases)
        await self.may_lend.wait()

    def _take(self, leases: Sequence[Lease]) -> None:
        self.messages.append(len(leases))
        self._has += leases
        if sum(self.messages) == self._jobs:
            self._is_whole.set()


class LateJobs:
    """A source whose first job is there, and whose others come once the node has the first one."""

    def __init__(self, node: WaitingNode, jobs: int) -> None:
        self._node, self._left = node, [Job(task=TASK, trial=trial, seed=trial) for trial in range(jobs)]
        self.ended = asyncio.Event()

    async def take(self) -> Job | None:
        if not self._left:
            self.ended.set()
            return None
        job = self._left.pop(0)
        if job.trial:
            await self._node.was_lent.wait()
        return job


@pytest.fixture(autouse=True)
def quick_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for nodes at every turn of its event loop."""
    monkeypatch.setattr(distribution, "JOIN_POLL_S", 0.0)


async def play(pool: NodePool, jobs: LateJobs | list[Job], concurrency: int) -> list[int]:
    """Trials of the jobs that ended."""
    ended: list[int] = []

    def keep(rollout: Rollout, last: bool) -> None:
        if last:
            ended.append(rollout.job.trial)

    settings = DistributionSettings(env="fake", concurrency=concurrency)
    async with asyncio.timeout(WAIT_S), open_distribution(pool, RunBudget(), settings, _answer) as running:
        await running.play(jobs, keep)
    return sorted(ended)


async def _answer(question: object) -> str:
    return "an answer"


def test_a_job_that_comes_during_an_exchange_is_played_at_once() -> None:
    async def run() -> None:
        node = WaitingNode("a", 2)
        assert await play(Pool(node), LateJobs(node, 2), concurrency=2) == [0, 1]
        assert (node.messages, node.exchanges) == ([1, 1], 1)

    asyncio.run(run())


def test_jobs_that_come_during_such_a_message_follow_together() -> None:
    async def run() -> None:
        node = WaitingNode("a", 4)
        node.may_lend.clear()
        jobs = LateJobs(node, 4)
        playing = asyncio.create_task(play(Pool(node), jobs, concurrency=4))
        await jobs.ended.wait()
        node.may_lend.set()
        assert await playing == [0, 1, 2, 3]
        assert (node.messages, node.exchanges) == ([1, 1, 2], 1)

    asyncio.run(run())


def test_jobs_of_a_lost_node_go_to_one_that_is_being_asked() -> None:
    async def run() -> None:
        node = WaitingNode("b", 2)  # the other one takes two of the three jobs
        jobs = [Job(task=TASK, trial=trial, seed=trial) for trial in range(3)]
        assert await play(Pool(DyingNode("a"), node), jobs, concurrency=2) == [0, 1, 2]
        assert (node.messages, node.exchanges) == ([1, 1, 1], 2)

    asyncio.run(run())


def test_a_node_whose_places_are_taken_is_sent_nothing_beside_its_exchanges() -> None:
    async def run() -> None:
        node = WaitingNode("a", 1)
        assert await play(Pool(node), LateJobs(node, 3), concurrency=1) == [0, 1, 2]
        assert (node.messages, node.exchanges) == ([1, 1, 1], 3)

    asyncio.run(run())
