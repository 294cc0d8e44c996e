"""Workers that play real episodes in threads of this process, and a driver whose lines to them break."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import ConfigError, EnvInfraError, NodeLost
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.outcome import Outcome
from gymcp.scale.distribution import NODE_KEY, DistributionSettings, distribute
from gymcp.scale.records import Lease, Node, Report
from gymcp.scale.worker import OpenedPlay, Worker

BANK = load_env(load_spec(str(Path(__file__).parents[2] / "examples" / "bank.py")))
BROKEN = replace(BANK, servers=tuple(replace(server, argv=("/no/such/program",), fork=None) for server in BANK.servers))
"""The bank on a machine that cannot start its server."""
CONCURRENCY = 2
WAIT_S = 300.0


@contextlib.contextmanager
def open_bank(env: LoadedEnv, cost: float | None, runner: asyncio.Runner) -> Iterator[OpenedPlay]:
    schedule = Schedule(concurrency=CONCURRENCY, max_attempts=1)
    budget = RunBudget(cost)
    yield OpenedPlay(
        config={},
        tasks={task.id: task for task in BANK.suite.tasks},
        budget=budget,
        play=lambda source, keep: run_jobs(
            env, get_sandbox("bwrap"), SCRIPTED["oracle"], source, schedule, keep, budget
        ),
    )


class LocalNode:
    """A worker in this process, and a line to it that loses one answer."""

    def __init__(self, name: str, env: LoadedEnv = BANK, *, loses_answer: int = 0) -> None:
        self._name = name
        self._worker = Worker(partial(open_bank, env, None))
        self._loses_answer = loses_answer
        self._answers = 0

    @property
    def name(self) -> str:
        return self._name

    async def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        await asyncio.to_thread(self._worker.wait_until_open, WAIT_S)
        report = await asyncio.to_thread(self._worker.exchange, leases, acknowledged, spent_elsewhere)
        self._answers += bool(report.finished)
        if self._answers and self._answers == self._loses_answer:
            raise NodeLost("the answer was lost on its way")
        return report

    async def stop(self, acknowledged: int) -> Report:
        report = await asyncio.to_thread(self._worker.stop, acknowledged)
        await asyncio.to_thread(self._worker.close)
        return report

    def end(self) -> None:
        self._worker.close()


class Pool:
    def __init__(self, *nodes: Node) -> None:
        self._nodes: Sequence[Node] = nodes

    async def join(self) -> Sequence[Node]:
        nodes, self._nodes = self._nodes, ()
        return nodes


def jobs(count: int) -> list[Job]:
    return [Job(task=BANK.suite.tasks[trial % 3], trial=trial, seed=trial) for trial in range(count)]


def play(pool: Pool, count: int, budget: RunBudget | None = None) -> list[tuple[Rollout, bool]]:
    """The attempts in the order in which they were recorded, and whether each was its job's last one."""
    recorded: list[tuple[Rollout, bool]] = []
    settings = DistributionSettings(env="bank", concurrency=CONCURRENCY, rejoin_s=0.0)

    def keep(rollout: Rollout, last: bool) -> None:
        recorded.append((rollout, last))

    async def run() -> None:
        async with asyncio.timeout(WAIT_S):
            await distribute(pool, jobs(count), keep, budget or RunBudget(), settings)

    asyncio.run(run())
    return recorded


def test_every_job_is_played_once_and_says_on_which_node() -> None:
    recorded = play(Pool(LocalNode("a"), LocalNode("b")), 24)
    assert sorted(rollout.job.trial for rollout, _ in recorded) == list(range(24))
    assert {(rollout.trajectory.score, last) for rollout, last in recorded} == {(1.0, True)}
    assert {rollout.trajectory.provenance[NODE_KEY] for rollout, _ in recorded} == {"a", "b"}


def test_an_answer_that_is_lost_costs_an_attempt_and_no_episode() -> None:
    recorded = play(Pool(LocalNode("a", loses_answer=2), LocalNode("b")), 24)
    kept = Counter(rollout.job.trial for rollout, _ in recorded if rollout.trajectory.outcome is Outcome.SCORED)
    assert kept == Counter(range(24))
    lost = [rollout.trajectory for rollout, last in recorded if not last]
    assert {(row.outcome, row.score, row.reason) for row in lost} == {
        (Outcome.ENV_INFRA, None, "node a was lost: the answer was lost on its way")
    }


def test_a_machine_on_which_all_fails_is_left_out_and_its_episodes_are_played_elsewhere() -> None:
    recorded = play(Pool(LocalNode("bad", BROKEN), LocalNode("good")), 24)
    assert Counter(rollout.job.trial for rollout, last in recorded if last) == Counter(range(24))
    assert {rollout.trajectory.score for rollout, last in recorded if last} == {1.0}
    failed = [rollout.trajectory.reason for rollout, last in recorded if not last]
    assert failed
    assert all(reason.startswith("node bad") for reason in failed)


def test_without_a_node_the_run_ends_with_an_error_and_keeps_its_records() -> None:
    with pytest.raises(NodeLost, match="no node is left"):
        play(Pool(LocalNode("a", loses_answer=1)), 24)


def test_money_that_is_spent_elsewhere_stops_a_worker() -> None:
    worker = Worker(partial(open_bank, BANK, 5.0))
    worker.wait_until_open(WAIT_S)
    (job,) = jobs(1)
    lease = Lease(number=1, task=job.task.id, trial=0, seed=0, policy_version="")
    assert not worker.exchange([lease], 0, 4.0).is_over
    assert worker.stop(1).is_over
    worker.close()
    with pytest.raises(EnvInfraError, match="has ended"):
        worker.exchange([], 1, 0.0)


def test_a_run_that_fails_to_open_says_why() -> None:
    @contextlib.contextmanager
    def refuse(runner: asyncio.Runner) -> Iterator[OpenedPlay]:
        if runner is not None:
            raise ConfigError("no such suite")
        yield OpenedPlay(config={}, tasks={}, budget=RunBudget(), play=lambda source, keep: asyncio.sleep(0))

    worker = Worker(refuse)
    with pytest.raises(ConfigError, match="no such suite"):
        worker.wait_until_open(WAIT_S)
    with pytest.raises(ConfigError, match="no such suite"):
        worker.exchange([], 0, 0.0)
