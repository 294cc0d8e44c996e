"""The driver of a run over several machines: lends jobs to nodes, records what comes back, and survives lost nodes."""

from __future__ import annotations

import asyncio
import logging
import math
import time
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import JobSource
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.errors import ConfigError, GymcpError, NodeLost
from gymcp.outcome import Outcome
from gymcp.scale.leases import AHEAD_SHARE, Batch, LeaseBook, count_room
from gymcp.scale.records import Answer, FinishedAttempt, Lease, Node, NodePool, Question, Report
from gymcp.types import Task, Trajectory, Usage

NODE_KEY = "node"
"""Key of an episode's provenance: the name of the node that played it."""
JOIN_POLL_S = 3.0
"""Seconds between two looks for nodes that have joined."""
AnswerQuestion = Callable[[Any], Coroutine[Any, Any, Any]]
"""Answers the questions of nodes, which may raise a GymcpError."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributionSettings:
    """Limits of a run over several nodes."""

    env: str
    """Name of the environment, for the records of lost episodes."""
    concurrency: int
    """Episodes at once on one node, unless the node has a number of its own."""
    known_tasks: Mapping[str, Task] = field(default_factory=dict)
    """Tasks that every node has, by id; any other is sent with its lease."""
    max_losses: int = 3
    """Number of nodes that may be lost with the same episode before it stays lost."""
    rejoin_s: float = 60.0
    """Seconds to wait for a node after the last one was lost."""


async def answer_nothing(question: Any) -> Any:
    """The answer of a driver whose nodes ask nothing. Raises ConfigError."""
    raise ConfigError(f"a node asks what nothing here answers: {question!r:.80}")


async def distribute(
    pool: NodePool,
    jobs: Iterable[Job],
    on_rollout: Callable[[Rollout, bool], None],
    budget: RunBudget,
    settings: DistributionSettings,
    answer: AnswerQuestion = answer_nothing,
) -> None:
    """Play the jobs on the nodes of the pool, until all are done or the `budget` is spent.

    `on_rollout` gets every attempt once, and whether it was the last one at its job: also an attempt whose node was
    lost, which is ``env_infra`` and played again on another node. When cancelled, the function hands over the records
    of the episodes under way and raises CancelledError. `answer`: answers the nodes' questions. Raises NodeLost if no
    node is left.
    """
    async with open_distribution(pool, budget, settings, answer) as distribution:
        await distribution.play(jobs, on_rollout)


@asynccontextmanager
async def open_distribution(
    pool: NodePool, budget: RunBudget, settings: DistributionSettings, answer: AnswerQuestion = answer_nothing
) -> AsyncIterator[Distribution]:
    """The nodes of the pool, served until the end of the block, where all are stopped at once.

    The records of the episodes that are then under way go where those of their batches go.
    """
    distribution = Distribution(pool, budget, settings, answer)
    distribution.start()
    try:
        yield distribution
    finally:
        await distribution.close()


class Distribution:
    """The nodes that play, and the jobs that they play. Made by `open_distribution`."""

    def __init__(
        self, pool: NodePool, budget: RunBudget, settings: DistributionSettings, answer: AnswerQuestion
    ) -> None:
        self._pool = pool
        self._book = LeaseBook(max_losses=settings.max_losses, known_tasks=settings.known_tasks)
        self._budget = budget
        self._settings = settings
        self._answer = answer
        self._nodes: dict[str, _Served] = {}
        """Nodes that are not lost, by name."""
        self._short: dict[str, _Served] = {}
        """Nodes with a free place and an exchange under way, which takes seconds if there is no news, by name."""
        self._last_loss = ""
        """Name of the node that was lost last, and why, as a part of a sentence."""
        self._working: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Gets the error of a task that ends with one."""
        self._changed = asyncio.Event()

    async def play(
        self, jobs: Iterable[Job] | JobSource, on_rollout: Callable[[Rollout, bool], None], settings: Hashable = None
    ) -> None:
        """Play the jobs, until all are done or the budget is spent; several calls at a time share the nodes.

        See `distribute`. `settings`: for the nodes, which play the jobs of each kind of settings side by side. Jobs of
        a source are taken as places become free. After a cancelled call, the episodes under way go on until the nodes
        are stopped. Raises NodeLost if no node is left.
        """
        batch = Batch(on_rollout=on_rollout, settings=settings)
        self._start(self._feed(jobs, batch))
        while not batch.is_done and not self._budget.is_spent:
            changed = asyncio.create_task(self._changed.wait())
            either: set[asyncio.Future[Any]] = {changed, self._failed}
            try:
                await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
            finally:
                changed.cancel()
            if self._failed.done():
                self._failed.result()

    def start(self) -> None:
        """Serve the nodes that join."""
        self._start(self._watch_nodes())

    async def close(self) -> None:
        """Stop all nodes, and record what they had under way."""
        working = list(self._working)
        for task in working:
            task.cancel()
        await asyncio.gather(*working, return_exceptions=True)
        if self._failed.done():
            self._failed.exception()  # retrieved, because nothing may have waited for it
        await self._stop_all()

    def _start(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        """Do the work in a task, whose error is that of all calls of `play`."""
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._end_task)
        return task

    def _end_task(self, task: asyncio.Task[None]) -> None:
        self._working.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and not self._failed.done():
            self._failed.set_exception(error)

    async def _feed(self, jobs: Iterable[Job] | JobSource, batch: Batch) -> None:
        """Put the jobs into the book: at once, or those of a source while few others wait."""
        if isinstance(jobs, Iterable):
            self._book.add(jobs, batch)
        else:
            while (job := await self._take(jobs)) is not None:
                self._book.add([job], batch)
                self._tell_change()
        batch.is_whole = True
        self._tell_change()

    async def _take(self, jobs: JobSource) -> Job | None:
        """The next job of a source, once nodes will play it soon: a few wait, so that no free place does."""
        while self._book.waiting + self._book.lent >= self._count_ahead():
            await self._changed.wait()
        return await jobs.take()

    def _count_ahead(self) -> int:
        """Number of jobs that all nodes together play at a time, and a few more."""
        limits = (self._limit_of(served.node) for served in self._nodes.values())
        return sum(math.ceil((1 + AHEAD_SHARE) * limit) for limit in limits)

    def _limit_of(self, node: Node) -> int:
        """Episodes at a time on the node."""
        return node.concurrency or self._settings.concurrency

    async def _watch_nodes(self) -> None:
        """Serve every node that joins. Raises NodeLost if there has been none for a while."""
        alone_since = time.monotonic()
        while True:
            for node in await self._pool.join():
                served = self._nodes[node.name] = _Served(node)
                self._start(self._serve(served))
                self._tell_change()
            if self._nodes:
                alone_since = time.monotonic()
            elif time.monotonic() - alone_since > self._settings.rejoin_s:
                raise NodeLost(
                    f"no node is left, and none has joined for {self._settings.rejoin_s:g} s{self._last_loss}"
                )
            await asyncio.sleep(JOIN_POLL_S)

    async def _serve(self, served: _Served) -> None:
        """Lend the node jobs, record its attempts and answer it, until the run is over or the node is lost."""
        node = served.node
        limit = self._limit_of(node)
        while self._is_live(served) and not self._budget.is_spent:
            leases = self._take_leases(served)
            if not self._book.count_lent(node.name):
                await self._changed.wait()  # for another job, or one that another node gives back
                continue
            served.is_asked = True
            self._note_free_place(served)
            try:
                report = await node.exchange(leases, served.acknowledged, self._spent_beside(served))
            except NodeLost as error:
                self._lose(served, str(error))
                return
            if not self._is_live(served):  # an answer broke off meanwhile
                return
            served.is_asked = False
            self._short.pop(node.name, None)
            self._record(served, report)
            self._take_questions(served, report)
            if served.failed >= limit and len(self._nodes) > 1:
                failed = f"all of its last {served.failed} episodes failed, the last one with: {served.reason}"
                self._lose(served, failed)
                return
            if report.is_over:  # the node has added up what all have spent, and rounded otherwise
                self._budget.end()
                self._tell_change()
                return

    def _take_leases(self, served: _Served) -> Sequence[Lease]:
        """Jobs for the node, as many as it may have now."""
        name = served.node.name
        room = count_room(self._book, name, concurrency=self._limit_of(served.node), nodes=len(self._nodes))
        return self._book.lend(name, room, self._nodes)

    def _note_free_place(self, served: _Served) -> None:
        """Let the node get jobs that come during its exchange, if it has a place for them."""
        name = served.node.name
        if served.is_asked and self._is_live(served) and self._book.count_lent(name) < self._limit_of(served.node):
            self._short[name] = served

    def _fill_places(self) -> None:
        """Lend waiting jobs to the nodes that have a free place and an exchange under way."""
        refused = {}
        while self._short and self._book.waiting and not self._budget.is_spent:
            name = next(iter(self._short))
            served = self._short.pop(name)
            if leases := self._take_leases(served):
                self._start(self._lend(served, leases))
            else:
                refused[name] = served
        self._short |= refused

    async def _lend(self, served: _Served, leases: Sequence[Lease]) -> None:
        """Lend the node jobs beside its exchange; jobs that come meanwhile follow together, in one more message."""
        try:
            await served.node.lend(leases)
        except NodeLost as error:
            self._lose(served, str(error))
            return
        self._note_free_place(served)
        self._fill_places()

    def _is_live(self, served: _Served) -> bool:
        """False once the node is lost, also if another worker has its name."""
        return self._nodes.get(served.node.name) is served

    def _spent_beside(self, served: _Served) -> float:
        return self._budget.spent - served.spent

    def _record(self, served: _Served, report: Report) -> None:
        """Hand over the attempts that are new; those of a job that the node does not have any more are dropped."""
        node = served.node.name
        for attempt in report.finished:
            if attempt.serial <= served.acknowledged:
                continue
            entry = self._book.find(node, attempt.lease)
            if entry is not None:
                cost = attempt.trajectory.usage.cost + sum(row.trajectory.usage.cost for row in attempt.branches)
                served.spent += cost
                self._budget.spend(cost)
                last = attempt.last and self._end_job(served, attempt)
                record = _name_node(attempt.trajectory, node)
                rollout = Rollout(job=entry.job, trajectory=record, states=attempt.states, branches=attempt.branches)
                entry.batch.on_rollout(rollout, last)
            served.acknowledged = attempt.serial
        if report.finished:
            self._tell_change()

    def _take_questions(self, served: _Served, report: Report) -> None:
        """Begin to answer the new questions, and stop answering those that were withdrawn."""
        for number in report.withdrawn:
            if number in served.asked:
                served.asked[number].cancel()
        for question in report.questions:
            served.asked[question.number] = self._start(self._answer_question(served, question))

    async def _answer_question(self, served: _Served, question: Question) -> None:
        try:
            try:
                answer = Answer(number=question.number, content=await self._answer(question.content))
            except GymcpError as error:
                answer = Answer(number=question.number, error=error)
            await served.node.answer([answer])
        except NodeLost as error:
            self._lose(served, str(error))
        finally:
            served.asked.pop(question.number, None)

    def _end_job(self, served: _Served, attempt: FinishedAttempt) -> bool:
        """Finish the job of a last attempt; False if its node may be to blame, so that it waits for another one."""
        node = served.node.name
        if attempt.trajectory.outcome is Outcome.ENV_INFRA:
            served.failed += 1
            served.reason = attempt.trajectory.reason
            if len(self._nodes) > 1 and self._book.return_failed(node, attempt.lease):
                return False
        else:
            served.failed = 0
        self._book.finish(node, attempt.lease)
        return True

    def _lose(self, served: _Served, why: str) -> None:
        """Give the jobs of a lost node back, and record an attempt without a score for each."""
        if not self._is_live(served):
            return  # an exchange and an answer broke off together
        node = served.node
        del self._nodes[node.name]
        self._short.pop(node.name, None)
        self._last_loss = f"; the last was {node.name}, lost because: {why}"
        for answering in served.asked.values():
            answering.cancel()
        node.end()
        lost = self._book.lose(node.name)
        log.warning("node %s is lost: %s; %d episodes are played again", node.name, why, len(lost))
        for lease in lost:
            record = _record_loss(lease.job, self._settings.env, f"node {node.name} was lost: {why}")
            lease.batch.on_rollout(Rollout(job=lease.job, trajectory=record, states={}), lease.is_final)
        self._tell_change()

    def _tell_change(self) -> None:
        """Wake up all that wait for a job, for a free place, or for the end."""
        self._fill_places()
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
    is_asked: bool = False
    """True while an exchange with it is under way."""
    acknowledged: int = 0
    """The largest serial of an attempt that has been recorded."""
    spent: float = 0.0
    """Cost of the node's recorded attempts."""
    failed: int = 0
    """Number of its last jobs, one after another, that ended as ``env_infra``."""
    reason: str = ""
    """Reason of the last one."""
    asked: dict[int, asyncio.Task[None]] = field(default_factory=dict)
    """Questions that are being answered, by number."""


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
