"""The worker of a node: today's scheduler, with its warm servers, fed with leases from elsewhere."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import JobSource
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.errors import EnvInfraError
from gymcp.scale.records import FinishedAttempt, Lease, Report
from gymcp.types import Json, Task

EXCHANGE_S = 5.0
"""Seconds after which an exchange is answered even if no attempt has finished: the answer shows that the loop runs."""
STOP_S = 60.0
"""Seconds in which cancelled episodes end, with their servers."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenedPlay:
    """A run that has been opened on a node."""

    config: Mapping[str, Json]
    """Content of its ``run.json``, which must be that of the driver."""
    tasks: Mapping[str, Task]
    """All tasks of the suite by their ids."""
    budget: RunBudget
    play: Callable[[JobSource, Callable[[Rollout, bool], None]], Coroutine[None, None, None]]
    """Plays the jobs of a source as `run_jobs` does."""


OpenPlay = Callable[[asyncio.Runner], AbstractContextManager[OpenedPlay]]
"""Opens models and agents on the event loop of the runner. Raises UsageError or EnvInfraError."""


class Worker:
    """Opens a run in a thread of its own and plays what is lent. Its methods may be called from any other thread.

    The event loop that plays also answers: an answer is a proof that it runs.
    """

    def __init__(self, open_play: OpenPlay) -> None:
        self._open_play = open_play
        self._opened: concurrent.futures.Future[Mapping[str, Json]] = concurrent.futures.Future()
        self._ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._leases: asyncio.Queue[Lease] = asyncio.Queue()
        self._numbers: dict[tuple[str, int], int] = {}
        """Task and trial -> number of the lease."""
        self._finished: deque[FinishedAttempt] = deque()
        self._serial = 0
        self._spent_elsewhere = 0.0
        self._news = asyncio.Event()
        self._stop = asyncio.Event()
        self._closing = asyncio.Event()
        self._is_over = False
        self._tasks: Mapping[str, Task] = {}
        self._budget = RunBudget()
        self._thread = threading.Thread(target=self._run, name="gymcp worker", daemon=True)
        self._thread.start()

    def wait_until_open(self, timeout_s: float) -> Mapping[str, Json]:
        """Content of ``run.json`` as it would be here. Raises what opening the run raises, TimeoutError."""
        return self._opened.result(timeout_s)

    def exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        """See `records.Node.exchange`. Raises EnvInfraError if the worker has ended."""
        return self._call(partial(self._exchange, leases, acknowledged, spent_elsewhere))

    def stop(self, acknowledged: int) -> Report:
        """See `records.Node.stop`. Raises EnvInfraError if the worker has ended."""
        return self._call(partial(self._stop_and_report, acknowledged))

    def close(self) -> None:
        """Cancel what is under way, and return once servers and models are gone."""
        if self._loop is not None and not self._ended.done():
            with contextlib.suppress(RuntimeError):  # the loop has been closed meanwhile
                self._loop.call_soon_threadsafe(self._close)
        self._thread.join(STOP_S)

    def _call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        self.wait_until_open(0)
        assert self._loop is not None
        answer = make()
        try:
            future = asyncio.run_coroutine_threadsafe(answer, self._loop)
        except RuntimeError:
            answer.close()
            raise EnvInfraError("the worker has ended") from None
        either: tuple[concurrent.futures.Future[Any], ...] = (future, self._ended)
        concurrent.futures.wait(either, return_when=concurrent.futures.FIRST_COMPLETED)
        if future.done():
            return future.result()
        self._ended.result()
        raise EnvInfraError("the worker has ended")

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner, self._open_play(runner) as opened:
                self._loop, self._tasks, self._budget = runner.get_loop(), opened.tasks, opened.budget
                self._opened.set_result(opened.config)
                runner.run(self._play(opened))
        except BaseException as error:  # the boundary of the thread: whoever waits gets it
            if not self._opened.done():
                self._opened.set_exception(error)
            else:
                self._ended.set_exception(error)
        finally:
            if not self._ended.done():
                self._ended.set_result(None)

    async def _play(self, opened: OpenedPlay) -> None:
        """Play until stopped, then answer until closed."""
        playing = asyncio.create_task(opened.play(self, self._keep))
        stopping = asyncio.create_task(self._stop.wait())
        await asyncio.wait((playing, stopping), return_when=asyncio.FIRST_COMPLETED)
        playing.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await playing
        self._is_over = True
        self._news.set()
        await self._closing.wait()

    def _close(self) -> None:
        self._stop.set()
        self._closing.set()

    async def take(self) -> Job | None:
        """The next lent job; as a source, the worker never ends."""
        lease = await self._leases.get()
        self._numbers[lease.task, lease.trial] = lease.number
        return Job(
            task=self._tasks[lease.task], trial=lease.trial, seed=lease.seed, policy_version=lease.policy_version
        )

    def _keep(self, rollout: Rollout, last: bool) -> None:
        self._serial += 1
        job = rollout.job
        attempt = FinishedAttempt(
            serial=self._serial,
            lease=self._numbers[job.task.id, job.trial],
            trajectory=rollout.trajectory,
            states=dict(rollout.states),
            branches=rollout.branches,
            last=last,
        )
        self._finished.append(attempt)
        self._news.set()

    async def _exchange(self, leases: Sequence[Lease], acknowledged: int, spent_elsewhere: float) -> Report:
        self._acknowledge(acknowledged)
        for lease in leases:
            self._leases.put_nowait(lease)
        self._budget.spend(spent_elsewhere - self._spent_elsewhere)
        self._spent_elsewhere = spent_elsewhere
        if self._budget.is_spent:
            self._stop.set()
        if not self._finished and not self._is_over:
            self._news.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(EXCHANGE_S):
                    await self._news.wait()
        return Report(finished=tuple(self._finished), is_over=self._is_over)

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
