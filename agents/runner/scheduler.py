"""Many episodes at once in one process: no episode waits for another, and only cancelled episodes are lost."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

from gymcp.agents.runner.rollout import Job, Rollout, rollout
from gymcp.agents.runner.search.judging import make_episode_judge
from gymcp.agents.runner.search.play import play_search
from gymcp.agents.runner.search.searches import Search
from gymcp.agents.runner.trees.allocation import NEVER_BRANCH
from gymcp.agents.runner.trees.controller import Controller, Independent, TreeBudget
from gymcp.agents.runner.trees.play import play_tree
from gymcp.agents.runner.trees.tree import Steers
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.server_losses import lost_server
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.machine_limits import free_memory_mb, memory_to_keep_free_mb
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory

DEFAULT_CONCURRENCY = 8
"""Episodes at once if nothing says how many (`gymcp.agents.runner.concurrency` can)."""
RETRY_PAUSE_S = 0.5
"""Seconds before the second attempt at an episode; doubled for every further attempt."""
MEMORY_POLL_S = 0.5
"""Seconds between two checks of the free memory while a job waits for it; the end of an episode is another check."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Limits of a run: how many episodes run at once, how long, how often, and for how much money."""

    concurrency: int = DEFAULT_CONCURRENCY
    """Maximum number of episodes at once."""
    harness_timeout_s: float = 600.0
    """Maximum seconds of the harness's own work in an episode, the backstop behind the timeouts of every single wait.
    The agent's time is not part of it, nor that of a model which plays the user."""
    agent_s: float | None = None
    """Maximum seconds of the agent's own time in an episode, after which it is graded as it stands. It can only lower
    the limit of an environment (`EpisodeLimits.agent_s`). None: that limit, or `budgets.MAX_SECONDS` without one."""
    max_attempts: int = 3
    """Maximum number of attempts at a job whose harness failed. A mistake of the model is never tried again."""
    min_free_mb: float | None = None
    """Free memory (MB) below which no further episode starts beside others; None: `memory_to_keep_free_mb`."""
    max_cost: float | None = None
    """Maximum cost of the whole run, resumed or not. Once it is spent no model is asked any more, and the episodes
    under way are cancelled. So a run exceeds it by less than one answer and its calls for each of them."""
    controller: Controller = field(default_factory=Independent)
    """Decides how many episodes of which task are played, and which of them branch."""
    tree: TreeBudget = field(default_factory=TreeBudget)
    """Limits of each tree; `trials` is that of the plan. The episodes of a tree are played one after another."""
    search: Search | None = None
    """Search for the answer to each task among the episodes of its tree, in place of the controller's branches."""


class JobSource(Protocol):
    """Jobs that are not all known when the run begins. Several workers take from it at the same time."""

    async def take(self) -> Job | None:
        """The next job, as soon as there is one; None: there will be no more."""
        ...


class _ListedJobs:
    """A source of jobs that are known from the start."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._waiting = deque(jobs)

    def __len__(self) -> int:
        return len(self._waiting)

    async def take(self) -> Job | None:
        return self._waiting.popleft() if self._waiting else None


async def run_jobs(
    env: LoadedEnv,
    sandbox: Sandbox,
    make_agent: AgentFactory,
    jobs: Iterable[Job] | JobSource,
    schedule: Schedule,
    on_rollout: Callable[[Rollout, bool], None],
    budget: RunBudget | None = None,
) -> None:
    """Run the jobs, `concurrency` at a time, until all are done or the `budget` is spent.

    Jobs that are not known yet come from a source. `on_rollout` gets every attempt, and whether it was the last one at
    its job. An infrastructure failure is tried again until `max_attempts`. When cancelled, the function still hands
    over the records of the running episodes, waits until their servers are gone, and raises CancelledError.
    """
    async with open_warm_sandbox(sandbox) as warm_sandbox:
        await _Run(env, warm_sandbox, make_agent, jobs, schedule, on_rollout, budget).run()


class _Run:
    """The jobs of one run that are still waiting, and the workers that take them."""

    def __init__(
        self,
        env: LoadedEnv,
        sandbox: Sandbox,
        make_agent: AgentFactory,
        jobs: Iterable[Job] | JobSource,
        schedule: Schedule,
        on_rollout: Callable[[Rollout, bool], None],
        budget: RunBudget | None,
    ) -> None:
        self._env = env
        self._sandbox = sandbox
        self._make_agent = make_agent
        self._source = _ListedJobs(jobs) if isinstance(jobs, Iterable) else jobs
        self._schedule = schedule
        self._on_rollout = on_rollout
        self._budget = budget or RunBudget(schedule.max_cost)
        self._memory = _MemoryGate(env, schedule)
        self._stopping = False

    async def run(self) -> None:
        count = self._schedule.concurrency
        if isinstance(self._source, _ListedJobs):
            count = min(count, len(self._source))
        workers = [asyncio.create_task(self._work()) for _ in range(count)]
        try:
            if workers:
                # `gather` would pass a cancellation on before `_stopping` is set, and a rollout turns it into a record
                ended, _ = await asyncio.wait(workers, return_when=asyncio.FIRST_EXCEPTION)
                for worker in ended:
                    worker.result()
        finally:
            self._stopping = True
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _work(self) -> None:
        while not self._stopping and not self._budget.is_spent:
            job = await self._source.take()
            if job is None:
                return
            await self._run_job(job)

    async def _run_job(self, job: Job) -> None:
        """Play the episode, again while the harness fails, up to `max_attempts` times.

        If the agent's calls have lost a server in all of at least two attempts, the last one is graded (`Attempts`).
        """
        for attempt in range(self._schedule.max_attempts):
            if attempt:
                await asyncio.sleep(RETRY_PAUSE_S * 2 ** (attempt - 1))
            is_last = attempt + 1 == self._schedule.max_attempts
            job = replace(job, attempts=replace(job.attempts, is_last=is_last))
            async with self._memory:
                result = await self._play_job(job)
            last = not result.trajectory.outcome.is_infra or is_last
            self._on_rollout(result, last)
            if last or self._stopping or self._budget.is_spent:
                return
            job = replace(job, attempts=job.attempts.add_failed(lost_server=lost_server(result.trajectory)))

    async def _play_job(self, job: Job) -> Rollout:
        """The job's episode, or its tree if it is searched for or the controller may let it branch."""
        if self._schedule.search is not None:
            return await play_search(
                job,
                self._schedule.search,
                self._schedule.tree,
                self._play_episode,
                must_stop=lambda: self._stopping or self._budget.is_spent,
                judge=make_episode_judge(self._schedule.search, self._env.judge, self._budget),
            )
        if isinstance(self._schedule.controller, NEVER_BRANCH):
            return await self._play_episode(job)
        return await play_tree(
            job,
            self._schedule.controller,
            self._schedule.tree,
            self._play_episode,
            must_stop=lambda: self._stopping or self._budget.is_spent,
        )

    async def _play_episode(self, job: Job, steering: Steers | None = None) -> Rollout:
        return await rollout(
            self._env,
            self._sandbox,
            self._make_agent,
            job,
            timeout_s=self._schedule.harness_timeout_s,
            agent_s=self._schedule.agent_s,
            budget=self._budget,
            steering=steering,
        )


class _MemoryGate:
    """A context that is entered once there is memory for one more episode, or no other episode is under way."""

    def __init__(self, env: LoadedEnv, schedule: Schedule) -> None:
        needed_mb = memory_to_keep_free_mb(server.limits for server in env.servers)
        self._min_free_mb = needed_mb if schedule.min_free_mb is None else schedule.min_free_mb
        self._running = 0
        self._ended = asyncio.Event()
        self._warned = False

    async def __aenter__(self) -> None:
        while self._running and (free := free_memory_mb()) < self._min_free_mb:
            if not self._warned:
                self._warned = True
                log.warning(
                    "%.0f MB of memory are free, less than %.0f: fewer episodes run at a time", free, self._min_free_mb
                )
            self._ended.clear()
            try:
                async with asyncio.timeout(MEMORY_POLL_S):
                    await self._ended.wait()
            except TimeoutError:
                continue
        self._running += 1

    async def __aexit__(self, *exc_info: object) -> None:
        self._running -= 1
        self._ended.set()
