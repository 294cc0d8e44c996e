"""A run of an agent on the tasks of an environment, from a config to a run folder with its report."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from importlib.metadata import version
from pathlib import Path

import typer

from gymcp.agents.runner.run import AGENTS, REACT, Plan, RunEnd, run_plan, select_tasks
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.cli.configs import EvalConfig
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import print_json
from gymcp.cli.policy_options import PolicyPlan, add_user, open_agents, plan_policy
from gymcp.cli.progress import Progress
from gymcp.cli.summary_table import print_summary
from gymcp.cli.task_patterns import read_patterns
from gymcp.envs.catalog import source_of
from gymcp.envs.recorded import load_named
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.privileges import check_rules, read_privileges
from gymcp.envs.wrappers.retrieval import check_retrieval, plan_retrieval
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.report import write_report
from gymcp.mcp_servers.sandbox import Sandbox, check_images, get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.docker.images import image_name
from gymcp.mcp_servers.transports.http_remote import check_remotes, select_cassette_mode
from gymcp.protocols import AgentFactory
from gymcp.store import RUN_FILE, TrajectoryStore, create_run, open_run
from gymcp.types import Json, Task

ORACLE = "oracle"
LOST_TO_INFRA = 3
OUT_OF_MONEY = 4
INTERRUPTED = 130
BUSY_TIMEOUT_S = 5.0
"""Seconds to wait for a lock on the store: no episode runs during a write, so a longer wait ends the run."""


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


def run_eval(config: EvalConfig, *, progress: Progress | None = None) -> EvalResult:
    """Run the agent on the tasks, record every episode, and write the report.

    Shows its progress on standard error, or in a display that is open already. It starts event loops of its own, so
    call it from a thread without one. Raises UsageError for an option that is wrong or a sandbox, server or model that
    cannot be used.
    """
    config = replace(config, agent=choose_agent(config))
    _check(config)
    policy, user = _plan_policies(config)
    wrappers = WrapperSelection(
        attack=config.attack,
        privileges=read_privileges(config.privileges) if config.privileges else None,
        stress=tuple(config.stress),
        retrieval=plan_retrieval(config.retrieve, config.tool_budget),
    )
    settings = {
        **(policy.config() if policy else {}),
        **(user.user_config() if user else {}),
        **wrappers.to_config(),
    }
    plan = Plan(
        agent=choose_agent(config), sandbox=config.sandbox, tasks=read_patterns(config.tasks),
        limit=config.limit or 0, earlier_limits=_read_earlier_limits(config), trials=config.trials, seed=config.seed,
        settings=settings,
    )  # fmt: skip
    sandbox = get_sandbox(config.sandbox)
    sandbox.check()
    env = _load_env(config, wrappers, sandbox)
    tasks = select_tasks(env.suite, plan)  # fails before a folder is made if the plan is wrong
    remove_orphans()
    recorded = plan.config(env, source_of(config.env))
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        env = stack.enter_context(add_user(runner, user, env, tasks))
        if policy is None:
            agents = SCRIPTED[plan.agent]
        else:
            agents = stack.enter_context(open_agents(runner, policy, env, sandbox, tasks))
        shown = progress or stack.enter_context(Progress(f"{env.spec.name} · {plan.agent}"))
        return _record(config, plan, recorded, env, sandbox, agents, runner, shown)


def choose_agent(config: EvalConfig) -> str:
    """Name of the agent: ``react`` is the only one with a model."""
    return config.agent or (REACT if config.policy is not None else ORACLE)


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
    if config.agent not in AGENTS:
        raise ConfigError(f"no agent '{config.agent}'; have {', '.join(AGENTS)}")
    if config.max_cost is not None and not config.max_cost > 0:
        raise ConfigError(f"--max-cost: must be more than 0, not {config.max_cost}")
    if config.agent != REACT and config.policy is not None:
        raise ConfigError(f"--policy: agent '{config.agent}' has no model; --agent react has")


def _plan_policies(config: EvalConfig) -> tuple[PolicyPlan | None, PolicyPlan | None]:
    """Plans of the agent's model and of the model that plays the user; None for one that the run does not have."""
    policy = user = None
    if config.agent == REACT:
        policy = plan_policy(config.policy, config.model, concurrency=config.concurrency, max_cost=config.max_cost)
    if config.user_policy:
        # greedy answers, as upstream's tau2 asks for, so that all agents meet the same user
        greedy = replace(config.model, sampling=replace(config.model.sampling, temperature=0.0))
        user = plan_policy(config.user_policy, greedy, concurrency=config.concurrency, max_cost=None)
    return policy, user


def _load_env(config: EvalConfig, wrappers: WrapperSelection, sandbox: Sandbox) -> LoadedEnv:
    """The environment with its wrappers, after a check that its servers can run and that the wrappers fit its tools."""
    env = wrappers.apply(load_named(config.env))
    env = replace(env, servers=select_cassette_mode(env.servers, config.cassette))
    check_remotes(env.servers, sandbox)
    check_images(sandbox, [server.image for server in env.servers if server.url is None])
    if wrappers.privileges is not None or wrappers.retrieval is not None:
        tools = asyncio.run(list_tools(env, sandbox))
        if wrappers.privileges is not None:
            check_rules(wrappers.privileges, tools, env.suite.tasks)
        if wrappers.retrieval is not None:
            check_retrieval(wrappers.retrieval, tuple(tools.values()))
    return env


def _record(
    config: EvalConfig,
    plan: Plan,
    recorded: Mapping[str, Json],
    env: LoadedEnv,
    sandbox: Sandbox,
    agents: AgentFactory,
    runner: asyncio.Runner,
    progress: Progress,
) -> EvalResult:
    """Play the plan into the run folder, whose config is `recorded`, and write the report."""
    name = f"{env.spec.name}-{plan.agent}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = config.out or make_run_folder(Path("runs") / name)
    versions = _list_versions(sandbox, env)
    growing = {"trials"} if config.limit is None else {"trials", "limit"}
    with create_run(folder, recorded, seeds=[config.seed], versions=versions, resume=config.resume, growing=growing):
        with TrajectoryStore.open(folder, write=True, busy_timeout_s=BUSY_TIMEOUT_S) as store:
            ended = run_plan(
                env,
                sandbox,
                plan,
                store,
                Schedule(concurrency=config.concurrency, max_cost=config.max_cost),
                progress.start,
                progress.advance,
                make_agent=agents,
                runner=runner,
            )
        summary = write_report(folder, lambda run: _tasks_by_id(env))
    return EvalResult(folder=folder, summary=summary, ended=ended)


def _tasks_by_id(env: LoadedEnv) -> Mapping[str, Task]:
    return {task.id: task for task in env.suite.tasks}


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


def _list_versions(sandbox: Sandbox, env: LoadedEnv) -> dict[str, str]:
    """Versions of everything besides gymcp that a score may depend on."""
    versions = {name: version(name) for name in ("gymnasium", "mcp", "pydantic")}
    if sandbox.name == "docker":
        return versions | {"images": ", ".join(sorted({image_name(server.image) for server in env.servers}))}
    return versions | {"python_inside": ".".join(map(str, interpreter().version))}
