"""A run of an agent on the tasks of an environment, from a config to a run folder with its report."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from gymcp.agents.runner.concurrency import (
    MAX_EPISODES,
    ConcurrencyChoice,
    choose_concurrency,
    describe_load,
    keep_given,
    limit_by_policy,
    limit_by_tasks,
)
from gymcp.agents.runner.environment import keep_answers, list_versions, wrap_environment
from gymcp.agents.runner.run import (
    PLANNED_KEY,
    Plan,
    PlayedElsewhere,
    RunEnd,
    check_judge,
    check_resumes,
    make_jobs,
    run_plan,
    select_tasks,
)
from gymcp.agents.runner.scheduler import DEFAULT_CONCURRENCY, Schedule
from gymcp.agents.runner.search.parse import parse_search
from gymcp.agents.runner.search.searches import Search
from gymcp.agents.runner.trees.branch_steps import parse_branches
from gymcp.cli.agent_options import AgentPlan, open_agent, plan_agent, plan_program
from gymcp.cli.configs import EvalConfig
from gymcp.cli.evaluation.grader_judge import add_judge, describe_models, plan_judge
from gymcp.cli.exit_codes import INTERRUPTED, LOST_TO_INFRA, OUT_OF_MONEY
from gymcp.cli.lazy_verbs import import_place
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.option_types import read_patterns
from gymcp.cli.output import print_json
from gymcp.cli.policy_options import OpenedModel, PolicyPlan, count_tree_cost, open_user, plan_user
from gymcp.cli.progress import Progress
from gymcp.cli.summary_table import print_summary
from gymcp.envs.catalog import source_of
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import LoadedEnv, price_steps
from gymcp.envs.wrappers.privileges import read_privileges
from gymcp.envs.wrappers.registry import WrapperSelection, check_selection
from gymcp.envs.wrappers.retrieval import plan_retrieval
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.metrics import MIN_COVERAGE_KEY
from gymcp.evaluators.names import UPPER_BOUND_KEY
from gymcp.evaluators.report import write_report
from gymcp.mcp_servers.machine_limits import read_machine_limits
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.protocols import AgentFactory
from gymcp.store import RUN_FILE, TrajectoryStore, create_run, open_run
from gymcp.types import Json, Task

SAW_VERDICTS = "the search saw the verdicts of its episodes"
LEARNT_VERDICTS = "the head of the search was trained on scores of these tasks"
"""Reasons why the success of a search is an upper bound."""
BUSY_TIMEOUT_S = 5.0
"""Seconds to wait for a lock on the store: no episode runs during a write, so a longer wait ends the run."""
NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._-]+")
"""Characters that the names of run folders do not have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalResult:
    """The recorded run, and the reason why it ended."""

    folder: Path
    summary: Mapping[str, Json]
    """Content of ``summary.json``."""
    ended: RunEnd


def execute(config: EvalConfig, *, as_json: bool) -> None:
    """Run the config, print the result, and end the command with its exit code."""
    result = run_eval(config)
    print_json(result.summary) if as_json else print_summary(result.summary)
    if config.search is not None and not as_json:
        _print_search(result.folder, config.search, result.summary.get("judge", {}).get("search"))
    if result.ended is not RunEnd.FINISHED:
        interrupted = result.ended is RunEnd.INTERRUPTED
        why = "interrupted" if interrupted else f"--max-cost {config.max_cost:g} is spent"
        more = "" if interrupted else ", and a higher --max-cost"
        print(
            f"gymcp: {why}; to go on, type the same command with: --out {result.folder} --resume{more}", file=sys.stderr
        )
        raise typer.Exit(INTERRUPTED if interrupted else OUT_OF_MONEY)
    if result.summary["scored"] < result.summary["episodes"]:
        raise typer.Exit(LOST_TO_INFRA)


def _print_search(folder: Path, search: str, asked: Mapping[str, Json] | None) -> None:
    """Print the number of episodes that stand behind the figures of a search, and what its judge has taken."""
    with TrajectoryStore.open(folder) as store:
        firsts, others = store.summaries(), [row.episode for row in store.branches()]
    solved = sum(row.success or False for row in firsts)
    seconds = sum(row.usage.wall_s for row in firsts)
    print(
        f"search {search.partition(',')[0]}: {solved} of {len(firsts)} solved by the episode that was chosen, in"
        f" {len(firsts) + len(others)} episodes of {seconds:.1f} s together; calls, tokens, cost and time count all"
    )
    if asked is not None:
        print(
            f"judge of the search: {asked['answers']} answers · {asked['prompt_tokens']:,} tokens read,"
            f" {asked['completion_tokens']:,} written · cost {asked['cost']:.4f}, which is no part of the agent's"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRun:
    """A config that has been checked as far as possible without a model, with everything that it names."""

    config: EvalConfig
    plan: Plan
    schedule: Schedule
    agent: AgentPlan
    user: PolicyPlan | None
    judge: PolicyPlan | None
    sandbox: Sandbox
    env: LoadedEnv
    """The environment inside its wrappers, without its models."""
    tasks: Sequence[Task]
    recorded: Mapping[str, Json]
    """Content of ``run.json``."""


def run_eval(
    config: EvalConfig, *, progress: Progress | None = None, on_begin: Callable[[], None] = lambda: None
) -> EvalResult:
    """Run the agent on the tasks, record every episode, and write the report.

    Shows its progress on standard error, or in a display that is open already. Calls `on_begin` once the run folder is
    this run's and locked. Starts event loops of its own, so call it from a thread without one. Raises UsageError for an
    option that is wrong or a sandbox, server or model that cannot be used.
    """
    if config.plan is not None:
        config = import_place("evaluation.cluster.placement:apply_plan")(config)
    prepared = prepare_run(config)
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        env = prepared.env
        if config.ray is not None:
            env = stack.enter_context(add_judge(runner, prepared.judge, env))
            agents = stack.enter_context(import_place("evaluation.cluster.driver:open_cluster")(prepared))
        else:
            env, agents = stack.enter_context(open_players(runner, prepared))
        display = progress or stack.enter_context(Progress(f"{env.spec.name} · {prepared.plan.agent}"))
        return _record(prepared, env, agents, runner, display, on_begin)


def _choose_concurrency(prepared: PreparedRun) -> ConcurrencyChoice:
    """The number of episodes at a time that was named; else one by the machine, once all models are in its memory.

    The nodes of a cluster play as many as the schedule says.
    """
    config = prepared.config
    if config.concurrency is not None or config.ray is not None:
        return keep_given(prepared.schedule.concurrency)
    models = [plan for plan in (prepared.agent.policy, prepared.user) if plan is not None]
    limits = [limit for plan in models for limit in limit_by_policy(plan.spec, plan.options)]
    load = describe_load(
        prepared.env,
        forks=prepared.sandbox.can_fork,
        waits_for_model=bool(models),
        program=prepared.agent.program,
        limits=(limit_by_tasks(len(prepared.tasks) * config.trials), *limits),
    )
    return choose_concurrency(read_machine_limits(), load)


def prepare_run(config: EvalConfig, opened: OpenedModel | None = None) -> PreparedRun:
    """The run of the config, before its models are opened. Raises UsageError, before a folder is made.

    `opened`: the agent's model, if it is open on another machine.
    """
    _check(config)
    agent, user = _plan_agent_and_user(config)
    if agent.policy is not None:
        agent = replace(agent, policy=replace(agent.policy, opened=opened))
    judge = plan_judge(config.judge, config.model, concurrency=_max_requests(config), max_cost=config.max_cost)
    wrappers = WrapperSelection(
        attack=config.attack,
        privileges=read_privileges(config.privileges) if config.privileges else None,
        stress=tuple(config.stress),
        retrieval=plan_retrieval(config.retrieve, config.tool_budget),
    )
    settings = {
        **agent.config(),
        **describe_models(user, judge),
        **wrappers.to_config(),
        **({MIN_COVERAGE_KEY: config.min_coverage} if config.min_coverage is not None else {}),
    }
    plan = Plan(
        agent=agent.name, sandbox=config.sandbox, tasks=read_patterns(config.tasks),
        limit=config.limit or 0, earlier_limits=_read_earlier_limits(config), trials=config.trials, seed=config.seed,
        settings=settings,
    )  # fmt: skip
    schedule = _plan_schedule(config)
    sandbox = get_sandbox(config.sandbox)
    sandbox.check()
    env = _load_env(config, wrappers, sandbox)
    agent = replace(agent, policy=count_tree_cost(agent.policy, user, schedule.tree.cost, env.spec.costs))
    tasks = select_tasks(env.suite, plan)
    plan = replace(plan, settings={**settings, **_describe_trees(config, schedule.search, env.spec.name, tasks)})
    remove_orphans()
    return PreparedRun(
        config=config, plan=plan, schedule=schedule, agent=agent, user=user, judge=judge, sandbox=sandbox, env=env,
        tasks=tasks, recorded=plan.config(env, source_of(config.env)),
    )  # fmt: skip


@contextlib.contextmanager
def open_players(runner: asyncio.Runner, prepared: PreparedRun) -> Iterator[tuple[LoadedEnv, AgentFactory]]:
    """The environment with its models, and the agents; all models have been asked once.

    Raises ConfigError, EnvInfraError if a server fails.
    """
    env, sandbox, tasks = prepared.env, prepared.sandbox, prepared.tasks
    with contextlib.ExitStack() as stack:
        env = stack.enter_context(open_user(runner, prepared.user, env, tasks[0]))(env)
        env = stack.enter_context(add_judge(runner, prepared.judge, env))
        agents = stack.enter_context(open_agent(runner, prepared.agent, env, sandbox, tasks))
        check_resumes(prepared.schedule, prepared.plan.agent, agents, tasks[0])
        check_judge(prepared.schedule, env)
        yield env, agents


def _read_earlier_limits(config: EvalConfig) -> tuple[int, ...]:
    """Limits that the run to resume had before this one, in order, so that the tasks it has played stay among its
    tasks."""
    if not config.resume or config.out is None or not (config.out / RUN_FILE).is_file():
        return ()
    run = open_run(config.out)
    limits = [*(growth.was.get("limit") for growth in run.growths), run.config.get("limit")]
    numbers = [limit for limit in dict.fromkeys(limits) if isinstance(limit, int)]
    return tuple(limit for limit in numbers if limit != (config.limit or 0))


def _check(config: EvalConfig) -> None:
    if config.resume and config.out is None:
        raise ConfigError("--resume: which run? name its folder with --out")
    if config.max_cost is not None and not config.max_cost > 0:
        raise ConfigError(f"--max-cost: must be more than 0, not {config.max_cost}")
    if config.ray is not None and config.cassette == "record":
        raise ConfigError("--ray and --cassette record: nodes would record apart; record without --ray, then replay")


def _plan_schedule(config: EvalConfig) -> Schedule:
    """The limits of the run with its controller or search. Raises ConfigError for one that cannot be read."""
    concurrency = config.concurrency or DEFAULT_CONCURRENCY
    schedule = Schedule(concurrency=concurrency, max_cost=config.max_cost, agent_s=config.model.budget.seconds)
    if config.branch is not None and config.search is not None:
        raise ConfigError("--branch and --search: a search decides itself which episodes branch; give one of them")
    if config.branch is not None:
        controller, tree = parse_branches(config.branch)
        return replace(schedule, controller=controller, tree=tree)
    if config.search is not None:
        search, tree = parse_search(config.search)
        if search.rubric is not None and config.ray is not None:
            raise ConfigError(f"--ray and --search '{config.search}': its judge is asked here, and not on nodes")
        if search.head is not None:
            if config.ray is not None:
                raise ConfigError(f"--ray and --search '{config.search}': a head is loaded here, and not on nodes")
            search = replace(search, rater=_import_heads().load_step_values(search.head))
        return replace(schedule, search=search, tree=tree)
    return schedule


def _describe_trees(config: EvalConfig, search: Search | None, env: str, tasks: Sequence[Task]) -> dict[str, Json]:
    """Entries of the run's config about branches, or the search with the head that it has; empty without trees."""
    if config.branch is not None:
        return {"branch": config.branch}
    if search is None:
        return {}
    marks = {UPPER_BOUND_KEY: SAW_VERDICTS} if search.sees_verdicts else {}
    if search.rubric is not None:
        marks["search_rubric"] = f"{search.rubric.name}/{search.rubric.version}"
    if search.head is not None and search.rater is not None:
        _import_heads().check_head(search.rater, env, config.policy)
        marks["search_head"] = _import_heads().hash_head(search.head)
        if any(f"{env}/{task.id}" in search.rater.tasks for task in tasks):
            marks[UPPER_BOUND_KEY] = LEARNT_VERDICTS
    return {"search": config.search, "search_value": search.value, **marks}


def _import_heads() -> Any:
    """The module of trained heads, imported on demand because it needs the extra `train`."""
    try:
        return importlib.import_module("gymcp.trainers.run.values.step_values")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--search: a head needs '{error.name}', which is not installed: pip install 'gymcp[train]'"
        ) from error


def _plan_agent_and_user(config: EvalConfig) -> tuple[AgentPlan, PolicyPlan | None]:
    """Plans of the agent and of the model that plays the user, which a run may not have."""
    agent = plan_agent(
        config.agent,
        config.policy,
        config.model,
        concurrency=_max_requests(config),
        max_cost=config.max_cost,
        program=plan_program(config.agent, config.program, config.env),
    )
    return agent, plan_user(config.user_policy, config.model, concurrency=_max_requests(config))


def _max_requests(config: EvalConfig) -> int:
    """Requests at a time to a model behind an address: as many as episodes, which is not known yet if it is chosen."""
    return config.concurrency or MAX_EPISODES


def _load_env(config: EvalConfig, wrappers: WrapperSelection, sandbox: Sandbox) -> LoadedEnv:
    """The environment with its wrappers, after a check that its servers can run and that the wrappers fit its tools."""
    env = wrap_environment(load_named(config.env), wrappers, sandbox, config.cassette)
    if wrappers.needs_tools:
        asyncio.run(check_selection(wrappers, env, sandbox))
    return env


def _record(
    prepared: PreparedRun,
    env: LoadedEnv,
    agents: AgentFactory | PlayedElsewhere,
    runner: asyncio.Runner,
    progress: Progress,
    on_begin: Callable[[], None],
) -> EvalResult:
    """Play the plan into the run folder and write the report. All models are in the machine's memory."""
    config, plan, choice = prepared.config, prepared.plan, _choose_concurrency(prepared)
    name = f"{env.spec.name}-{NOT_IN_A_NAME.sub('-', plan.agent)}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = config.out or make_run_folder(Path("runs") / name)
    versions = list_versions(prepared.sandbox, env)
    planned = sum(1 for _ in make_jobs(plan, prepared.tasks, prepared.schedule))
    growing = {"trials"} if config.limit is None else {"trials", "limit"}
    run = create_run(
        folder,
        prepared.recorded,
        seeds=[config.seed],
        versions=versions,
        resume=config.resume,
        growing=growing,
        start={"concurrency": choice.to_json(), PLANNED_KEY: planned},
    )
    with run:
        on_begin()
        with (
            TrajectoryStore.open(folder, write=True, busy_timeout_s=BUSY_TIMEOUT_S) as store,
            keep_answers(env, folder) as judged,
        ):
            if choice.is_chosen:
                print(f"gymcp: {choice.describe('--concurrency')}", file=sys.stderr)
            ended = run_plan(
                judged,
                prepared.sandbox,
                plan,
                store,
                replace(prepared.schedule, concurrency=choice.episodes),
                progress.start,
                progress.advance,
                make_agent=agents,
                runner=runner,
            )
        tasks = {task.id: task for task in env.suite.tasks}
        summary = write_report(folder, lambda run: tasks, find_prices=lambda run: price_steps(env.spec))
    return EvalResult(folder=folder, summary=summary, ended=ended)


def make_run_folder(folder: Path) -> Path:
    """A new folder of that name, or of that name with a number: another run may have begun in the same second."""
    for number in itertools.count(1):
        numbered = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            numbered.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise StoreError(f"run folder {numbered}: cannot be made: {error.strerror or error}") from error
        return numbered
    raise AssertionError("unreachable: numbers do not end")
