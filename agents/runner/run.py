"""An agent on the tasks of an environment, into the store of a run folder: started, interrupted, continued."""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import math
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.agents.strategies.scripted import NEEDS, SCRIPTED, applies
from gymcp.envs.audit.fingerprint import env_digest, hash_cassettes, suite_digest
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.evaluators.graders.dynamic import TRUTHS
from gymcp.evaluators.grading import apply_grader
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory, Grader
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.types import Json, Outcome, Suite, Task, Trajectory

MAX_RESUMES = 3
"""A job is tried again while fewer than this many times `Schedule.max_attempts` of its attempts were lost."""


REACT = "react"
AGENTS = (*SCRIPTED, REACT)


class Ended(StrEnum):
    """How a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    OUT_OF_MONEY = "out of money"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run consists of: the same plan, resumed, is the same run."""

    agent: str
    sandbox: str = "bwrap"
    tasks: str = "*"
    """Glob over task ids."""
    limit: int = 0
    """At most this many tasks, evenly spread over the suite; 0: all."""
    trials: int = 1
    seed: int = 0
    settings: Mapping[str, Json] = field(default_factory=dict)
    """What else the agent's scores depend on: its policy, sampling, budgets."""

    def config(self, env: LoadedEnv, source: str) -> dict[str, Json]:
        """What `run.json` records and a resumed run must agree with; `source` names the environment from anywhere."""
        return {
            "env": env.spec.name,
            "source": source,
            "env_version": env.spec.version,
            "suite": env.suite.name,
            "suite_version": env.suite.version,
            "env_digest": env_digest(env),
            "suite_digest": suite_digest(env.suite),
            "agent": self.agent,
            "sandbox": self.sandbox,
            "tasks": self.tasks,
            "limit": self.limit,
            "trials": self.trials,
            "seed": self.seed,
            **self.settings,
            **({"cassettes": dict(cassettes)} if (cassettes := hash_cassettes(env)) else {}),
        }


def select_tasks(suite: Suite, plan: Plan) -> tuple[Task, ...]:
    """The tasks of the plan that its agent can play. Raises ConfigError where there are none."""
    if plan.agent not in AGENTS:
        raise ConfigError(f"no agent '{plan.agent}'; have {', '.join(AGENTS)}")
    matching = [task for task in suite.tasks if fnmatch.fnmatchcase(task.id, plan.tasks)]
    if not matching:
        some = ", ".join(task.id for task in suite.tasks[:3])
        raise ConfigError(f"suite '{suite.name}': no task matches '{plan.tasks}'; the ids look like {some}, ...")
    playable = [task for task in matching if applies(plan.agent, task)]
    if not playable:
        raise ConfigError(
            f"suite '{suite.name}': agent '{plan.agent}' applies to none of the {len(matching)} tasks; it needs "
            f"{NEEDS[plan.agent]}"
        )
    if not plan.limit or plan.limit >= len(playable):
        return tuple(playable)
    # Evenly over what matches; what cannot be played gives way to the next that can. So the samples of agents that can
    # play different tasks share as many as they can, and their runs can be compared.
    can_play = {task.id for task in playable}
    even = [i * len(matching) // plan.limit for i in range(plan.limit)]
    chosen = {at for at in even if matching[at].id in can_play}
    for at in even:
        if matching[at].id not in can_play:
            following = (n % len(matching) for n in range(at, at + len(matching)))
            chosen.add(next(n for n in following if n not in chosen and matching[n].id in can_play))
    return tuple(matching[at] for at in sorted(chosen))


def jobs_of(plan: Plan, tasks: Sequence[Task]) -> Iterator[Job]:
    """One job for each trial of each task, with a seed of its own that depends on nothing but the plan's.

    Two policies meet the same seeds; their groups differ.
    """
    policy = str(plan.settings.get("policy", ""))
    for trial in range(plan.trials):
        for task in tasks:
            drawn = hashlib.sha256(f"{plan.seed}/{task.id}/{trial}".encode()).digest()
            yield Job(task=task, trial=trial, seed=int.from_bytes(drawn[:4], "big") >> 1, policy_version=policy)


def run_plan(
    env: LoadedEnv,
    sandbox: Sandbox,
    plan: Plan,
    store: TrajectoryStore,
    schedule: Schedule,
    on_start: Callable[[int], None] = lambda total: None,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    *,
    make_agent: AgentFactory | None = None,
    runner: asyncio.Runner | None = None,
) -> Ended:
    """Runs what the store does not hold yet; nothing is lost where it was interrupted (SIGINT, SIGTERM).

    What a grader had failed on is graded again from the record. What the harness lost is tried again while fewer than
    `MAX_RESUMES` times ``schedule.max_attempts`` attempts of it were lost; what was cancelled, always.
    `on_start` is told how many episodes there are to run; `on_episode` gets each that will not be tried again.
    `make_agent` is needed for an agent with a model, and `runner` where the model lives on an event loop already.
    """
    if make_agent is None:
        make_agent = SCRIPTED[plan.agent]
    failed = [row for row in store.summaries() if row.outcome is Outcome.GRADER_ERROR]
    for _ in grade_again(env, store, failed):
        pass
    jobs = jobs_to_run(env, plan, store, schedule)
    on_start(len(jobs))
    spent = math.fsum(row.usage.cost for row in store.summaries(latest=False))
    budget = RunBudget(schedule.max_cost, spent)

    def keep(rollout: Rollout, last: bool) -> None:
        store.append(rollout.trajectory, rollout.states, tags=rollout.job.task.tags)
        if last:
            on_episode(rollout.trajectory)

    if not run_until_signalled(run_jobs(env, sandbox, make_agent, jobs, schedule, keep, budget), runner):
        return Ended.INTERRUPTED
    return Ended.OUT_OF_MONEY if budget.is_spent and jobs_to_run(env, plan, store, schedule) else Ended.FINISHED


def jobs_to_run(env: LoadedEnv, plan: Plan, store: TrajectoryStore, schedule: Schedule) -> list[Job]:
    """The jobs of the plan that the store does not hold, or lost often enough."""
    cap = MAX_RESUMES * schedule.max_attempts
    done = {key for key, ended in store.attempts().items() if not _may_run(ended, cap)}
    return [job for job in jobs_of(plan, select_tasks(env.suite, plan)) if (job.task.id, job.trial) not in done]


def _may_run(ended: Sequence[Outcome], cap: int) -> bool:
    return ended[-1].runs_again and sum(outcome.is_infra for outcome in ended) < cap


def grade_again(
    env: LoadedEnv,
    store: TrajectoryStore,
    rows: Iterable[EpisodeRow],
    *,
    grader: Grader | None = None,
    name: str = "",
    refresh: bool = False,
) -> Iterator[tuple[EpisodeRow, Trajectory]]:
    """Each row with its newest verdict, which the store then has too. Raises ConfigError for a task that is not there.

    By the environment's grader, or by another one, whose `name` the store is told. What a dynamic grader found out
    before is used again, unless `refresh`. Infrastructure failures and cancelled episodes have nothing to grade: the
    store refuses them.
    """
    tasks = {task.id: task for task in env.suite.tasks}
    by = f"{env.spec.name}/{env.spec.version}" if grader is None else name
    for row in rows:
        if row.task not in tasks:
            raise ConfigError(f"suite '{env.suite.name}': no task '{row.task}', which the run has an episode of")
        recorded = store.load(row.id)
        truths = {} if refresh else {**recorded.provenance.get(TRUTHS, {}), **store.truths(row.id)}
        if truths or refresh:
            recorded = replace(recorded, provenance={**recorded.provenance, TRUTHS: truths})
        graded = apply_grader(grader or env.spec.grade, tasks[row.task], recorded, store.state)
        store.add_grade(graded, grader=by, truths=graded.provenance.get(TRUTHS, {}))
        yield row, graded


def run_until_signalled(work: Coroutine[None, None, None], runner: asyncio.Runner | None = None) -> bool:
    """Runs `work` to its end; a SIGINT or SIGTERM cancels it, waits for what it does then, and gives False.

    On the runner's event loop where there is one, else on its own.
    """

    async def main() -> None:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, task.cancel)
        try:
            await task
        finally:
            for name in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(name)

    try:
        runner.run(main()) if runner else asyncio.run(main())
    except asyncio.CancelledError:
        return False
    return True
