"""The worker of a node: today's scheduler, with its warm servers, fed with leases from elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.aio import LoopEnded, RunnerThread
from gymcp.errors import EnvInfraError
from gymcp.scale.questions import QuestionBox
from gymcp.scale.records import Answer, FinishedAttempt, Lease, Report
from gymcp.types import Json, Task

EXCHANGE_S = 5.0
"""Seconds after which an exchange is answered even if there is no news: the answer shows that the loop runs."""
STOP_S = 60.0
"""Seconds in which cancelled episodes end, with their servers."""
T = TypeVar("T")


class LeasedJobs:
    """Jobs that are lent to a worker with the same settings, as a source for a scheduler. It never ends."""

    def __init__(
        self,
        settings: Hashable,
        tasks: Mapping[str, Task],
        ask: Callable[[Any], Coroutine[Any, Any, Any]],
        keep: Callable[[int, Rollout, bool], None],
    ) -> None:
        """`keep`: takes the number of a lease, its attempt, and whether it was the last one."""
        self.settings = settings
        self.ask = ask
        """Asks the driver; see `questions.QuestionBox.ask`."""
        self._tasks = tasks
        self._keep = keep
        self._leases: asyncio.Queue[Lease] = asyncio.Queue()
        self._numbers: dict[tuple[str, int], int] = {}
        """Task and trial -> number of the lease."""

    def put(self, lease: Lease) -> None:
        """Add a job."""
        self._leases.put_nowait(lease)

    async def take(self) -> Job | None:
        """See `scheduler.JobSource`."""
        lease = await self._leases.get()
        task = self._tasks[lease.task] if isinstance(lease.task, str) else lease.task
        self._numbers[task.id, lease.trial] = lease.number
        return Job(
            task=task,
            trial=lease.trial,
            seed=lease.seed,
            policy_version=lease.policy_version,
            attempts=lease.attempts,
        )

    def keep(self, rollout: Rollout, last: bool) -> None:
        """Send an attempt to the driver, and whether it was the last one at its job."""
        self._keep(self._numbers[rollout.job.task.id, rollout.job.trial], rollout, last)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPlay:
    """A run that has been opened on a node."""

    config: Mapping[str, Json]
    """Everything that scores depend on, which must be as on the driver."""
    tasks: Mapping[str, Task]
    """All tasks of the suite by their ids."""
    budget: RunBudget
    play: Callable[[LeasedJobs], Coroutine[None, None, None]]
    """Plays jobs with their settings, as `run_jobs` does; called once for each kind of settings that comes up."""


OpenPlay = Callable[[asyncio.Runner], AbstractContextManager[OpenedPlay]]
"""Opens models and agents on the event loop of the runner. Raises UsageError or EnvInfraError."""


class Worker:
    """Opens a run in a thread of its own and plays what is lent. Its methods may be called from any other thread.

    The event loop that plays also answers: an answer is a proof that it runs.
    """

    def __init__(self, open_play: OpenPlay) -> None:
        self._jobs: dict[Hashable, LeasedJobs] = {}
        """The leases, by their settings."""
        self._playing: list[asyncio.Task[None]] = []
        self._finished: deque[FinishedAttempt] = deque()
        self._serial = 0
        self._spent_elsewhere = 0.0
        self._news = asyncio.Event()
        self._questions = QuestionBox(self._news.set)
        self._stop = asyncio.Event()
        self._closing = asyncio.Event()
        self._is_over = False
        self._thread = RunnerThread("gymcp worker", open_play, self._play)

    def wait_until_open(self, timeout_s: float) -> Mapping[str, Json]:
        """The config of the run as it would be here. Raises what opening the run raises, TimeoutError."""
        return self._thread.wait_until_open(timeout_s).config

    def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        """See `records.Node.exchange`. Raises EnvInfraError if the worker has ended."""
        return self._call(partial(self._exchange, leases, acknowledged, spent_elsewhere))

    def lend(self, leases: Sequence[Lease]) -> None:
        """See `records.Node.lend`. Raises EnvInfraError if the worker has ended."""
        self._call(partial(self._take_leases, leases))

    def answer(self, answers: Sequence[Answer]) -> None:
        """See `records.Node.answer`. Raises EnvInfraError if the worker has ended."""
        self._call(partial(self._take_answers, answers))

    def stop(self, acknowledged: int) -> Report:
        """See `records.Node.stop`. Raises EnvInfraError if the worker has ended."""
        return self._call(partial(self._stop_and_report, acknowledged))

    def close(self) -> None:
        """Cancel what is under way, and return once servers and models are gone."""
        if self._thread.is_open:
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self._thread.call(self._close)
        self._thread.join(STOP_S)

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.wait_until_open(0)
        try:
            return self._thread.ask(make)
        except LoopEnded:
            raise EnvInfraError("the worker has ended") from None

    async def _play(self) -> None:
        """Let the schedulers play until stopped, then answer until closed. Raises what a scheduler raises."""
        await self._stop.wait()
        for playing in self._playing:
            playing.cancel()
        results = await asyncio.gather(*self._playing, return_exceptions=True)
        errors = [each for each in results if isinstance(each, Exception)]
        if errors:
            raise errors[0]
        self._is_over = True
        self._news.set()
        await self._closing.wait()

    def _close(self) -> None:
        self._stop.set()
        self._closing.set()

    async def _take_leases(self, leases: Sequence[Lease]) -> None:
        if not self._stop.is_set():
            for lease in leases:
                self._begin(lease)

    def _begin(self, lease: Lease) -> None:
        """Let a scheduler play the lease; a new one if it is the first with its settings."""
        jobs = self._jobs.get(lease.settings)
        if jobs is None:
            opened = self._thread.wait_until_open(0)
            jobs = LeasedJobs(lease.settings, opened.tasks, self._questions.ask, self._keep)
            self._jobs[lease.settings] = jobs
            playing = asyncio.create_task(opened.play(jobs))
            playing.add_done_callback(lambda _: self._stop.set())  # the money is spent, or it raised an error
            self._playing.append(playing)
        jobs.put(lease)

    def _keep(self, lease: int, rollout: Rollout, last: bool) -> None:
        self._serial += 1
        attempt = FinishedAttempt(
            serial=self._serial,
            lease=lease,
            trajectory=rollout.trajectory,
            states=dict(rollout.states),
            branches=rollout.branches,
            last=last,
        )
        self._finished.append(attempt)
        self._news.set()

    async def _exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        self._acknowledge(acknowledged)
        await self._take_leases(leases)
        budget = self._thread.wait_until_open(0).budget
        budget.spend(spent_elsewhere - self._spent_elsewhere)
        self._spent_elsewhere = spent_elsewhere
        if budget.is_spent:
            self._stop.set()
        if not self._finished and not self._questions.has_news and not self._is_over:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXCHANGE_S):
                    await self._news.wait()
        questions, withdrawn = self._questions.take_new()
        return Report(finished=tuple(self._finished), questions=questions, withdrawn=withdrawn, is_over=self._is_over)

    async def _take_answers(self, answers: Sequence[Answer]) -> None:
        self._questions.answer(answers)

    async def _stop_and_report(self, acknowledged: int) -> Report:
        self._acknowledge(acknowledged)
        self._stop.set()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                while not self._is_over:
                    self._news.clear()
                    await self._news.wait()
        return Report(finished=tuple(self._finished), is_over=True)

    def _acknowledge(self, serial: int) -> None:
        while self._finished and self._finished[0].serial <= serial:
            self._finished.popleft()
