"""A run: one agent on the tasks of an environment, recorded in a store; it can be interrupted and resumed."""

from __future__ import annotations

import asyncio
import fnmatch
import math
import signal
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol

from gymcp.agents.runner.regrading import PaidJudge, Truths, ask_again, regrade
from gymcp.agents.runner.rollout import Job, Rollout
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.runner.search.judging import make_episode_judge
from gymcp.agents.runner.trees.allocation import NEVER_BRANCH
from gymcp.agents.runner.trees.ask_controller import plan_trees
from gymcp.agents.strategies.budgets import RunBudget
from gymcp.agents.strategies.guarded_agent import GuardedAgent
from gymcp.agents.strategies.scripted import NEEDS, SCRIPTED, applies
from gymcp.agents.strategies.user_agents import is_user_agent
from gymcp.envs.audit.fingerprint import env_digest, hash_cassettes, list_dev_sources, suite_digest
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.server_losses import UNTRIED, Attempts, lost_server
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.answers import Answer, usage_of_grader
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.outcome import Outcome
from gymcp.protocols import AgentFactory, Resumes
from gymcp.seeds import derive_seed
from gymcp.store import TrajectoryStore
from gymcp.types import Json, Suite, Task, Trajectory

MAX_RESUMES = 3
"""A job is run again until this number times `Schedule.max_attempts` of its attempts have failed."""

PLANNED_KEY = "planned_episodes"
"""Key of the number of episodes of the whole plan, in the record of each start of a run."""

TaskPatterns = str | tuple[str, ...]
"""One glob or id of tasks, or several."""
_GLOB_CHARACTERS = frozenset("*?[")

REACT = "react"
AGENTS = (*SCRIPTED, REACT)


class RunEnd(StrEnum):
    """The way in which a run ended."""

    FINISHED = "finished"
    INTERRUPTED = "interrupted"
    OUT_OF_MONEY = "out of money"


class JobPlayer(Protocol):
    """Plays jobs as `run_jobs` does."""

    def __call__(
        self, jobs: Sequence[Job], on_rollout: Callable[[Rollout, bool], None], budget: RunBudget
    ) -> Coroutine[None, None, None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PlayedElsewhere:
    """In place of agents, for a run whose episodes are played on other machines."""

    play: JobPlayer


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The jobs of a run and everything their scores depend on: a resumed run must have the same plan."""

    agent: str
    sandbox: str = "bwrap"
    tasks: TaskPatterns = "*"
    """Ids of tasks, or globs."""
    limit: int = 0
    """Maximum number of tasks, evenly spread over those that match; 0 for all."""
    earlier_limits: tuple[int, ...] = ()
    """Limits that a run had before it grew, in order: the tasks of each are among those of the next."""
    trials: int = 1
    seed: int = 0
    settings: Mapping[str, Json] = field(default_factory=dict)
    """Further settings that the agent's scores depend on: its policy, sampling, budgets."""

    def config(self, env: LoadedEnv, source: str) -> dict[str, Json]:
        """The content of `run.json`, which a resumed run must agree with.

        `source`: a name of the environment that can be resolved from any working folder.
        """
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
            "tasks": self.tasks if isinstance(self.tasks, str) else list(self.tasks),
            "limit": self.limit,
            "trials": self.trials,
            "seed": self.seed,
            **self.settings,
            **({"cassettes": dict(cassettes)} if (cassettes := hash_cassettes(env)) else {}),
            **({"dev_sources": sources} if (sources := list_dev_sources(env)) else {}),
        }


def select_tasks(suite: Suite, plan: Plan, *, own_agent: bool = False) -> tuple[Task, ...]:
    """The tasks of the plan that its agent can play. Raises ConfigError if there are none.

    `own_agent`: the caller makes the agent, so that the plan may name it as it likes.
    """
    if not own_agent and plan.agent not in AGENTS and not is_user_agent(plan.agent):
        raise ConfigError(f"no agent '{plan.agent}'; have {', '.join(AGENTS)}")
    matching = _match_tasks(suite, (plan.tasks,) if isinstance(plan.tasks, str) else plan.tasks)
    playable = [task for task in matching if applies(plan.agent, task)]
    if not playable:
        raise ConfigError(
            f"suite '{suite.name}': agent '{plan.agent}' applies to none of the {len(matching)} tasks; it needs "
            f"{NEEDS[plan.agent]}"
        )
    chosen: set[str] = set()
    for limit in (*plan.earlier_limits, plan.limit):
        if not limit or limit >= len(playable):
            return tuple(playable)
        left = [task for task in matching if task.id not in chosen]
        more = _spread_evenly(left, {task.id for task in playable} - chosen, limit - len(chosen))
        chosen |= {task.id for task in more}
    return tuple(task for task in matching if task.id in chosen)


def _match_tasks(suite: Suite, patterns: Sequence[str]) -> list[Task]:
    """Tasks that fit a pattern, in the order of the suite. Raises ConfigError for a pattern that no task fits."""
    ids = {task.id for task in suite.tasks}
    chosen = {pattern for pattern in patterns if pattern in ids}
    for pattern in patterns:
        if pattern in ids:
            continue
        matches = [id for id in ids if fnmatch.fnmatchcase(id, pattern)]
        if not matches:
            some = ", ".join(task.id for task in suite.tasks[:3])
            what = f"matches '{pattern}'" if _GLOB_CHARACTERS & set(pattern) else f"'{pattern}'"
            raise ConfigError(f"suite '{suite.name}': no task {what}; the ids look like {some}, ...")
        chosen.update(matches)
    return [task for task in suite.tasks if task.id in chosen]


def _spread_evenly(matching: Sequence[Task], playable: Set[str], limit: int) -> tuple[Task, ...]:
    """`limit` playable tasks, evenly spread over the matching ones.

    A task that cannot be played gives way to the next that can. So the samples of agents that can play different tasks
    share as many tasks as possible, and their runs can be compared.
    """
    even = [number * len(matching) // limit for number in range(limit)]
    chosen = {index for index in even if matching[index].id in playable}
    for index in even:
        if matching[index].id not in playable:
            following = (n % len(matching) for n in range(index, index + len(matching)))
            chosen.add(next(n for n in following if n not in chosen and matching[n].id in playable))
    return tuple(matching[index] for index in sorted(chosen))


def make_jobs(plan: Plan, tasks: Sequence[Task], schedule: Schedule | None = None) -> Iterator[Job]:
    """One job for each trial of each task; its seed is derived from the plan's seed, the task and the trial.

    Two policies get the same seeds; their groups differ. The controller of the schedule may plan other numbers of
    trials; each is then a tree. Raises ConfigError if it plans none.
    """
    policy = str(plan.settings.get("policy", ""))
    settings = schedule or Schedule()
    trials = plan_trees(settings.controller, tasks, replace(settings.tree, trials=plan.trials))
    for trial in range(max(trials.values(), default=0)):
        for task in tasks:
            if trial >= trials[task.id]:
                continue
            seed = derive_seed(plan.seed, task.id, trial)
            yield Job(task=task, trial=trial, seed=seed, policy_version=policy)


def run_plan(
    env: LoadedEnv,
    sandbox: Sandbox,
    plan: Plan,
    store: TrajectoryStore,
    schedule: Schedule,
    on_start: Callable[[int], None] = lambda total: None,
    on_episode: Callable[[Trajectory], None] = lambda trajectory: None,
    *,
    make_agent: AgentFactory | PlayedElsewhere | None = None,
    runner: asyncio.Runner | None = None,
) -> RunEnd:
    """Run the jobs that the store does not hold yet. SIGINT and SIGTERM interrupt the run, and nothing is lost.

    Episodes, branches too, on which a grader had failed are graded again from their records; once the money is spent,
    no judge is asked about them. A job whose harness failed is tried again while fewer than `MAX_RESUMES` times
    ``schedule.max_attempts`` of its attempts have failed; a cancelled one, always.

    `on_start` gets the number of episodes to run; `on_episode` gets each episode that will not be tried again.
    `make_agent` is needed for an agent with a model and for one of the caller's, whose name in the plan may be any;
    `runner` if the model already lives on an event loop.
    """
    tasks = select_tasks(env.suite, plan, own_agent=make_agent is not None)
    play = _plan_play(env, sandbox, plan, tasks[0], schedule, make_agent)
    budget = RunBudget(schedule.max_cost, sum_cost(store, env.judge.answers.all() if env.judge else ()))
    is_judged = _grade_failed(env, store, runner, budget)
    jobs = jobs_to_run(plan, tasks, store, schedule)
    on_start(len(jobs))

    def record(rollout: Rollout, last: bool) -> None:
        store.append(rollout.trajectory, rollout.states, tags=rollout.job.task.tags, branches=rollout.branches)
        if last:
            on_episode(rollout.trajectory)

    if not run_until_signalled(play(jobs, record, budget), runner):
        return RunEnd.INTERRUPTED
    if env.judge is not None and isinstance(make_agent, PlayedElsewhere):  # the other machines have no judge
        is_judged = _grade_failed(env, store, runner, budget)
    is_done = is_judged and not (budget.is_spent and jobs_to_run(plan, tasks, store, schedule))
    return RunEnd.FINISHED if is_done else RunEnd.OUT_OF_MONEY


def sum_cost(store: TrajectoryStore, answers: Iterable[Answer]) -> float:
    """Money that a run has spent: on all attempts and their branches, and on these answers of its judge."""
    rows = [*store.summaries(latest=False), *(row.episode for row in store.branches(latest=False))]
    return math.fsum((*(row.usage.cost for row in rows), usage_of_grader(answers)["cost"]))


def _grade_failed(env: LoadedEnv, store: TrajectoryStore, runner: asyncio.Runner | None, budget: RunBudget) -> bool:
    """Grade the episodes, branches too, on which a grader has failed, with the answers of the environment's judge.

    Verdicts that say the same again are not recorded. Returns False if a question was not asked because the money is
    spent.
    """
    rows = [*store.summaries(), *(row.episode for row in store.branches())]
    failed = [row for row in rows if row.outcome is Outcome.GRADER_ERROR]
    answered: Truths = {}
    paid = None if env.judge is None else PaidJudge(env.judge.judge, budget)
    if paid is not None and env.judge is not None and failed:
        run_async = runner.run if runner else asyncio.run
        asked = run_async(ask_again(replace(env, judge=replace(env.judge, judge=paid)), store, failed))
        answered = {id: answers.truths for id, answers in asked.items()}
    deque(regrade(env, store, failed, answered=answered, only_changes=True), maxlen=0)
    return paid is None or not paid.has_refused


def _plan_play(
    env: LoadedEnv,
    sandbox: Sandbox,
    plan: Plan,
    task: Task,
    schedule: Schedule,
    make_agent: AgentFactory | PlayedElsewhere | None,
) -> JobPlayer:
    """Plays jobs with these agents, or with the scripted one of the plan. Raises ConfigError if they do not fit."""
    if isinstance(make_agent, PlayedElsewhere):
        return make_agent.play
    if make_agent is None:
        if plan.agent not in SCRIPTED:
            raise ConfigError(f"agent '{plan.agent}' is not scripted: pass make_agent")
        make_agent = SCRIPTED[plan.agent]
    check_resumes(schedule, plan.agent, make_agent, task)
    check_judge(schedule, env)
    agents = make_agent
    return lambda jobs, record, budget: run_jobs(env, sandbox, agents, jobs, schedule, record, budget)


def check_resumes(schedule: Schedule, name: str, make_agent: AgentFactory, task: Task) -> None:
    """Raise ConfigError if episodes may branch and the agent cannot go on from a record.

    The agent that is made to find out is thrown away.
    """
    forks = schedule.search.forks if schedule.search is not None else False
    if isinstance(schedule.controller, NEVER_BRANCH) and not forks:
        return
    agent = make_agent(task, 0)
    if not (agent.can_resume() if isinstance(agent, GuardedAgent) else isinstance(agent, Resumes)):
        raise ConfigError(
            f"agent '{name}': cannot take a branch, because it has no method resume(steps) that rebuilds its context"
            " from a record; react and most scripted agents have one"
        )


def check_judge(schedule: Schedule, env: LoadedEnv) -> None:
    """Raise ConfigError if the search takes its values from a judge, and the environment has none."""
    if schedule.search is not None:
        make_episode_judge(schedule.search, env.judge, RunBudget())


def jobs_to_run(plan: Plan, tasks: Sequence[Task], store: TrajectoryStore, schedule: Schedule) -> list[Job]:
    """The jobs on these tasks that have no episode in the store, or only failed episodes that may be tried again."""
    cap = MAX_RESUMES * schedule.max_attempts
    ended = store.attempts()
    done = {key for key, outcomes in ended.items() if not _may_run(outcomes, cap)}
    jobs = [job for job in make_jobs(plan, tasks, schedule) if (job.task.id, job.trial) not in done]
    earlier = _read_failed_attempts(store, ended.keys() - done)
    return [replace(job, attempts=earlier.get((job.task.id, job.trial), UNTRIED)) for job in jobs]


def _read_failed_attempts(store: TrajectoryStore, jobs: Set[tuple[str, int]]) -> dict[tuple[str, int], Attempts]:
    """The attempts that have failed at each of the jobs (task, trial)."""
    found: dict[tuple[str, int], Attempts] = {}
    for row in store.summaries(latest=False, tasks={task for task, _ in jobs}) if jobs else ():
        key = (row.task, row.trial)
        if key in jobs and row.outcome.is_infra:
            lost = row.outcome is not Outcome.POLICY_INFRA and lost_server(store.load(row.id, tokens=False))
            found[key] = found.get(key, UNTRIED).add_failed(lost_server=lost)
    return found


def _may_run(ended: Sequence[Outcome], cap: int) -> bool:
    return ended[-1].runs_again and sum(outcome.is_infra for outcome in ended) < cap


def run_until_signalled(work: Coroutine[None, None, None], runner: asyncio.Runner | None = None) -> bool:
    """Run `work` to its end and return True. SIGINT or SIGTERM cancels it; its cleanup is awaited, and False returned.

    The event loop is the runner's if one is given, else a new one.
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
