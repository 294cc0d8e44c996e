"""The driver of a run over several machines: lends jobs to nodes, records what comes back, and survives lost nodes."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.errors import NodeLost
from gymcp.outcome import Outcome
from gymcp.scale.leases import LeaseBook, count_room
from gymcp.scale.records import FinishedAttempt, Node, NodePool, Report
from gymcp.types import Trajectory, Usage

NODE_KEY = "node"
"""Key of an episode's provenance: the name of the node that played it."""
JOIN_POLL_S = 3.0
"""Seconds between two looks for nodes that have joined."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionSettings:
    """Limits of a run over several nodes."""

    env: str
    """Name of the environment, for the records of lost episodes."""
    concurrency: int
    """Episodes at once on one node."""
    max_losses: int = 3
    """Number of nodes that may be lost with the same episode before it stays lost."""
    rejoin_s: float = 60.0
    """Seconds to wait for a node after the last one was lost."""


async def distribute(
    pool: NodePool,
    jobs: Iterable[Job],
    on_rollout: Callable[[Rollout, bool], None],
    budget: RunBudget,
    settings: DistributionSettings,
) -> None:
    """Play the jobs on the nodes of the pool, until all are done or the `budget` is spent.

    `on_rollout` gets every attempt once, and whether it was the last one at its job: also an attempt whose node was
    lost, which is ``env_infra`` and played again on another node. When cancelled, the function hands over the records
    of the episodes under way and raises CancelledError. Raises NodeLost if no node is left.
    """
    await _Distribution(pool, jobs, on_rollout, budget, settings).run()


class _Distribution:
    """The jobs of one run, and the nodes that play them."""

    def __init__(
        self,
        pool: NodePool,
        jobs: Iterable[Job],
        on_rollout: Callable[[Rollout, bool], None],
        budget: RunBudget,
        settings: DistributionSettings,
    ) -> None:
        self._pool = pool
        self._book = LeaseBook(jobs, max_losses=settings.max_losses)
        self._on_rollout = on_rollout
        self._budget = budget
        self._settings = settings
        self._nodes: dict[str, _Served] = {}
        """Nodes that are not lost, by name."""
        self._serving: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    @property
    def _is_over(self) -> bool:
        return self._book.is_done or self._budget.is_spent

    async def run(self) -> None:
        watching = asyncio.create_task(self._watch_nodes())
        try:
            while not self._is_over:
                changed = asyncio.create_task(self._changed.wait())
                working = {watching, *self._serving}
                try:
                    await asyncio.wait({changed, *working}, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    changed.cancel()
                for task in working:
                    if task.done():
                        self._serving.discard(task)
                        task.result()
        finally:
            working = {watching, *self._serving}
            for task in working:
                task.cancel()
            await asyncio.gather(*working, return_exceptions=True)
            await self._stop_all()

    async def _watch_nodes(self) -> None:
        """Serve every node that joins. Raises NodeLost if there has been none for a while."""
        alone_since = time.monotonic()
        while True:
            for node in await self._pool.join():
                served = self._nodes[node.name] = _Served(node)
                self._serving.add(asyncio.create_task(self._serve(served)))
            if self._nodes:
                alone_since = time.monotonic()
                self._tell_change()  # the wait in `run` takes the new tasks in
            elif time.monotonic() - alone_since > self._settings.rejoin_s:
                raise NodeLost(f"no node is left, and none has joined for {self._settings.rejoin_s:g} s")
            await asyncio.sleep(JOIN_POLL_S)

    async def _serve(self, served: _Served) -> None:
        """Lend the node jobs and record its attempts, until the run is over or the node is lost."""
        node = served.node
        while not self._is_over:
            room = count_room(self._book, node.name, concurrency=self._settings.concurrency, nodes=len(self._nodes))
            leases = self._book.lend(node.name, room)
            if not self._book.count_lent(node.name):
                await self._changed.wait()  # for a job that another node gives back
                continue
            try:
                report = await node.exchange(leases, served.acknowledged, self._spent_beside(served))
            except NodeLost as error:
                self._lose(node, str(error))
                return
            self._record(served, report)
            if served.failed >= self._settings.concurrency and len(self._nodes) > 1:
                self._lose(node, f"all of its last {served.failed} episodes failed, the last one with: {served.reason}")
                return
            if report.is_over:  # the node has added up what all have spent, and rounded otherwise
                self._budget.end()
                self._tell_change()
                return

    def _spent_beside(self, served: _Served) -> float:
        return self._budget.spent - served.spent

    def _record(self, served: _Served, report: Report) -> None:
        """Hand over the attempts that are new; those of a job that the node does not have any more are dropped."""
        node = served.node.name
        for attempt in report.finished:
            if attempt.serial <= served.acknowledged:
                continue
            job = self._book.find(node, attempt.lease)
            if job is not None:
                cost = attempt.trajectory.usage.cost + sum(row.trajectory.usage.cost for row in attempt.branches)
                served.spent += cost
                self._budget.spend(cost)
                last = attempt.last and self._end_job(served, attempt)
                record = _name_node(attempt.trajectory, node)
                self._on_rollout(
                    Rollout(job=job, trajectory=record, states=attempt.states, branches=attempt.branches), last
                )
            served.acknowledged = attempt.serial
        if self._is_over:
            self._tell_change()

    def _end_job(self, served: _Served, attempt: FinishedAttempt) -> bool:
        """Finish the job of a last attempt; False if its node may be to blame, so that it waits for another one."""
        node = served.node.name
        if attempt.trajectory.outcome is Outcome.ENV_INFRA:
            served.failed += 1
            served.reason = attempt.trajectory.reason
            if len(self._nodes) > 1 and self._book.return_failed(node, attempt.lease):
                self._tell_change()
                return False
        else:
            served.failed = 0
        self._book.finish(node, attempt.lease)
        return True

    def _lose(self, node: Node, why: str) -> None:
        """Give the jobs of a lost node back, and record an attempt without a score for each."""
        del self._nodes[node.name]
        node.end()
        lost = self._book.lose(node.name)
        log.warning("node %s is lost: %s; %d episodes are played again", node.name, why, len(lost))
        for lease in lost:
            record = _record_loss(lease.job, self._settings.env, f"node {node.name} was lost: {why}")
            self._on_rollout(Rollout(job=lease.job, trajectory=record, states={}), lease.is_final)
        self._tell_change()

    def _tell_change(self) -> None:
        """Wake up all nodes that wait for a job, or for the end."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _stop_all(self) -> None:
        """Stop all workers at once, and record what they had under way."""
        served = list(self._nodes.values())
        answers = await asyncio.gather(*(one.node.stop(one.acknowledged) for one in served), return_exceptions=True)
        for one, answer in zip(served, answers, strict=True):
            if isinstance(answer, Report):
                self._record(one, answer)
            elif isinstance(answer, Exception):
                log.warning("node %s could not be stopped: %s", one.node.name, answer)
            one.node.end()


@dataclass(slots=True)
class _Served:
    """A node with what the driver knows of it."""

    node: Node
    acknowledged: int = 0
    """The largest serial of an attempt that has been recorded."""
    spent: float = 0.0
    """Cost of the node's recorded attempts."""
    failed: int = 0
    """Number of its last jobs, one after another, that ended as ``env_infra``."""
    reason: str = ""
    """Reason of the last one."""


def _name_node(trajectory: Trajectory, node: str) -> Trajectory:
    """The record with the node that played the episode."""
    reason = f"node {node}: {trajectory.reason}" if trajectory.outcome.is_infra else trajectory.reason
    return replace(trajectory, reason=reason, provenance={**trajectory.provenance, NODE_KEY: node})


def _record_loss(job: Job, env: str, reason: str) -> Trajectory:
    """The record of an attempt whose node was lost."""
    return Trajectory(
        id=uuid.uuid4().hex,
        env=env,
        task=job.task.id,
        group=job.group(env),
        seed=job.seed,
        trial=job.trial,
        outcome=Outcome.ENV_INFRA,
        reason=reason,
        usage=Usage(started_at=time.time()),
    )
