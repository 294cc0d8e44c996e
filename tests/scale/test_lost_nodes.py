"""The driver beside nodes in this process that fail in an exact order: no job is lost, none waits for a dead node."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from worker_nodes import Pool

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.errors import NodeLost
from gymcp.outcome import Outcome
from gymcp.scale import distribution
from gymcp.scale.distribution import NODE_KEY, DistributionSettings, distribute
from gymcp.scale.records import Answer, FinishedAttempt, Lease, Node, NodePool, Question, Report
from gymcp.types import Task, Trajectory

TASK = Task(id="task", prompts=("Do it.",))
TURNS = 200
"""Turns of the event loop in which all other tasks do all that they can do."""
WAIT_S = 20.0


class FakeNode:
    """A node that ends its jobs at once with one outcome; a `late` one lets all others act before."""

    def __init__(self, name: str, outcome: Outcome = Outcome.SCORED, *, is_late: bool = False) -> None:
        self._name, self._outcome, self._is_late = name, outcome, is_late
        self._serial = 0
        self._lent_beside: list[Lease] = []
        """Leases that came beside an exchange."""
        self.was_lent = asyncio.Event()
        self.has_ended = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def concurrency(self) -> int | None:
        return None

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        self.was_lent.set()
        await wait_turns(TURNS if self._is_late else 1)
        beside, self._lent_beside = self._lent_beside, []
        return Report(finished=tuple(self._finish(lease) for lease in (*leases, *beside)))

    def _finish(self, lease: Lease) -> FinishedAttempt:
        self._serial += 1
        score = 1.0 if self._outcome is Outcome.SCORED else None
        record = Trajectory(
            id=f"{self._name}{self._serial}",
            env="fake",
            task=TASK.id,
            trial=lease.trial,
            outcome=self._outcome,
            score=score,
        )
        return FinishedAttempt(
            serial=self._serial, lease=lease.number, trajectory=record, states={}, branches=(), last=True
        )

    async def lend(self, leases: Sequence[Lease]) -> None:
        self._lent_beside += leases

    async def answer(self, answers: Sequence[Answer]) -> None:
        pass

    async def stop(self, acknowledged: int) -> Report:
        return Report(is_over=True)

    def end(self) -> None:
        self.has_ended = True


class ReopeningPool:
    """One node, and another worker on it once the first has ended."""

    def __init__(self, first: FakeNode, second: FakeNode) -> None:
        self._first, self._waiting = first, [first, second]

    async def join(self) -> Sequence[Node]:
        is_due = len(self._waiting) == 2 or self._first.has_ended
        return [self._waiting.pop(0)] if self._waiting and is_due else []


class DyingNode(FakeNode):
    """Asks once, and dies when it is answered. Its next exchange still gives one more report, the one after breaks off.

    With a `successor` that next exchange itself breaks off, but not before the successor plays.
    """

    def __init__(self, name: str, successor: FakeNode | None = None) -> None:
        super().__init__(name)
        self._successor = successor
        self._exchanges = 0
        self._died = asyncio.Event()

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        self._exchanges += 1
        if self._exchanges == 1:
            return Report(questions=(Question(number=1, content=None),))
        await self._died.wait()
        if self._successor is not None:
            await self._successor.was_lent.wait()
        elif self._exchanges == 2:
            return Report()
        raise NodeLost("its exchange broke off")

    async def answer(self, answers: Sequence[Answer]) -> None:
        self._died.set()
        raise NodeLost("its answer broke off")


async def wait_turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick_joins(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver looks for nodes at every turn of its event loop."""
    monkeypatch.setattr(distribution, "JOIN_POLL_S", 0.0)


def play(pool: NodePool, *, count: int, concurrency: int, rejoin_s: float = WAIT_S) -> list[tuple[Rollout, bool]]:
    """The attempts in the order in which they were recorded, and whether each was its job's last one."""
    recorded: list[tuple[Rollout, bool]] = []

    def keep(rollout: Rollout, last: bool) -> None:
        recorded.append((rollout, last))

    async def answer(question: object) -> str:
        return "an answer"

    async def run() -> None:
        jobs = [Job(task=TASK, trial=trial, seed=trial) for trial in range(count)]
        settings = DistributionSettings(env="fake", concurrency=concurrency, rejoin_s=rejoin_s)
        async with asyncio.timeout(WAIT_S):
            await distribute(pool, jobs, keep, RunBudget(), settings, answer)

    asyncio.run(run())
    return recorded


def list_ends(recorded: Sequence[tuple[Rollout, bool]]) -> list[tuple[int, float | None, object]]:
    """Trial, score and node of the attempts that ended a job."""
    rows = [rollout.trajectory for rollout, last in recorded if last]
    return sorted((row.trial, row.score, row.provenance.get(NODE_KEY)) for row in rows)


def test_a_node_that_is_lost_while_a_report_of_it_comes_is_lent_nothing_more() -> None:
    recorded = play(Pool(DyingNode("a"), FakeNode("b", is_late=True)), count=4, concurrency=2)
    assert list_ends(recorded) == [(trial, 1.0, "b") for trial in range(4)]


def test_an_error_of_an_earlier_worker_does_not_remove_the_one_that_replaced_it() -> None:
    replacing = FakeNode("a", is_late=True)
    recorded = play(ReopeningPool(DyingNode("a", replacing), replacing), count=4, concurrency=2)
    assert list_ends(recorded) == [(trial, 1.0, "a") for trial in range(4)]
    assert sum(not last for _, last in recorded) == 2, "those of the first worker"


def test_episodes_that_failed_on_one_node_wait_for_the_others() -> None:
    pool = Pool(FakeNode("full", Outcome.ENV_INFRA), FakeNode("good", is_late=True))
    recorded = play(pool, count=4, concurrency=8)
    assert list_ends(recorded) == [(trial, 1.0, "good") for trial in range(4)]
    assert sum(not last for _, last in recorded) == 2


def test_episodes_that_fail_on_every_node_end_without_a_score() -> None:
    pool = Pool(FakeNode("a", Outcome.ENV_INFRA), FakeNode("b", Outcome.ENV_INFRA))
    recorded = play(pool, count=2, concurrency=8)
    assert [(trial, score) for trial, score, _ in list_ends(recorded)] == [(0, None), (1, None)]
    assert len(recorded) == 6, "each was tried three times"


def test_episodes_that_failed_on_a_node_are_played_there_again_once_the_others_are_gone() -> None:
    recorded = play(Pool(FakeNode("a", Outcome.ENV_INFRA), DyingNode("b")), count=2, concurrency=8)
    assert {trial for trial, _, _ in list_ends(recorded)} == {0, 1}


def test_without_a_node_the_error_says_why_the_last_one_was_lost() -> None:
    says = r"no node is left, and none has joined for 0 s; the last was a, lost because: its answer broke off"
    with pytest.raises(NodeLost, match=says):
        play(Pool(DyingNode("a")), count=4, concurrency=2, rejoin_s=0.0)
