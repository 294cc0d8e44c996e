"""Many episodes at once in one process: no lock-step, and nothing lost but what was cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.forkserver.warm_sandbox import free_memory_mb, open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory

RETRY_PAUSE_S = 0.5
"""Before an episode is tried again; doubled for every further attempt."""
KEPT_FREE = 2
"""As many times the memory that one server may use must be free for one more episode, as for one more spare."""
LOOK_AGAIN_S = 0.5
"""How often is looked whether memory is free again, beside the end of every episode."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    concurrency: int = 8
    episode_timeout_s: float = 600.0
    """For a whole episode; the backstop behind the bounds of every single wait."""
    max_attempts: int = 3
    """Of one job whose harness failed. What the model did wrong is never tried again."""
    least_free_mb: float | None = None
    """No episode starts beside others while less memory is free; None: as `KEPT_FREE` has it for the largest server."""
    max_cost: float | None = None
    """Money for the whole run, resumed or not: once it is spent no model is asked any more, and the episodes under way
    are cancelled. So what is spent exceeds it by less than one answer, and its calls, for each of them."""


async def run_jobs(
    env: LoadedEnv,
    sandbox: Sandbox,
    make_agent: AgentFactory,
    jobs: Iterable[Job],
    schedule: Schedule,
    on_rollout: Callable[[Rollout, bool], None],
    budget: RunBudget | None = None,
) -> None:
    """Runs the jobs, `concurrency` at a time; `on_rollout` gets every attempt, and whether it was the job's last.

    Where the `budget` is spent the rest stays undone.

    An infrastructure failure is tried again until `max_attempts`. When cancelled, hands over what the running episodes
    have done so far, waits until their servers are gone, and raises CancelledError.
    """
    waiting = deque(jobs)
    stopping = False
    memory = _Memory(env, schedule)
    budget = budget or RunBudget(schedule.max_cost)

    async def work() -> None:
        while waiting and not stopping and not budget.is_spent:
            job = waiting.popleft()
            for attempt in range(schedule.max_attempts):
                if attempt:
                    await asyncio.sleep(RETRY_PAUSE_S * 2 ** (attempt - 1))
                async with memory:
                    bound = schedule.episode_timeout_s
                    done = await rollout(env, sandbox, make_agent, job, timeout_s=bound, budget=budget)
                last = not done.trajectory.outcome.is_infra or attempt + 1 == schedule.max_attempts
                on_rollout(done, last)
                if last or stopping or budget.is_spent:
                    break

    async with open_warm_sandbox(sandbox) as sandbox:  # noqa: PLR1704
        workers = [asyncio.create_task(work()) for _ in range(min(schedule.concurrency, len(waiting)))]
        try:
            if workers:
                # `gather` would pass a cancellation on before `stopping` is set, and a rollout turns it into a record
                ended, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                for worker in ended:
                    worker.result()
        finally:
            stopping = True
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


class _Memory:
    """A context that is entered when there is memory for one more episode, or when no other is under way."""

    def __init__(self, env: LoadedEnv, schedule: Schedule) -> None:
        largest = max((server.limits.memory_mb for server in env.servers), default=0)
        self._least_mb = KEPT_FREE * largest if schedule.least_free_mb is None else schedule.least_free_mb
        self._running = 0
        self._ended = asyncio.Event()
        self._warned = False

    async def __aenter__(self) -> None:
        while self._running and (free := free_memory_mb()) < self._least_mb:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%.0f MB of memory are free, less than %.0f: fewer episodes run at a time", free, self._least_mb
                )
            self._ended.clear()
            try:
                async with asyncio.timeout(LOOK_AGAIN_S):
                    await self._ended.wait()
            except TimeoutError:
                continue
        self._running += 1

    async def __aexit__(self, *exc_info: object) -> None:
        self._running -= 1
        self._ended.set()
