"""``gymcp eval``: run an agent on the tasks of an environment."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import sys
from dataclasses import replace
from datetime import datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.policies.specs import FORMS
from gymcp.agents.runner.run import AGENTS, REACT, Plan, RunEnd, run_plan, select_tasks
from gymcp.agents.runner.scheduler import Schedule
from gymcp.agents.strategies.budgets import Budget
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.agents.tool_calls.formats import FORMATS
from gymcp.cli.machine.clean import reap_before_a_run
from gymcp.cli.output import print_json, print_summary
from gymcp.cli.policy_options import opened, plan_policy, with_user
from gymcp.cli.progress import Progress
from gymcp.envs.catalog import source_of
from gymcp.envs.episodes.tool_listing import list_tools
from gymcp.envs.recorded import load_named
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.wrappers.injection import ATTACKS
from gymcp.envs.wrappers.privileges import check_rules, read_privileges
from gymcp.envs.wrappers.retrieval import check_retrieval, plan_retrieval
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.envs.wrappers.stress import STRESSORS
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.report import write_report
from gymcp.mcp_servers.sandbox import Sandbox, check_images, get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.docker.images import image_name
from gymcp.mcp_servers.transports.http_remote import check_remotes, in_mode
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Sampling

BUSY_TIMEOUT_S = 5.0
LOST_TO_INFRA = 3
OUT_OF_MONEY = 4
INTERRUPTED = 130
REACT_PANEL = "Agent react"


def command(
    env: Annotated[str, typer.Argument(help="A catalog name (see `gymcp suites`) or the path of an environment file.")],
    agent: Annotated[str, typer.Option(help=f"One of {', '.join(AGENTS)}.")] = "oracle",
    sandbox: Annotated[str, typer.Option(help="bwrap, docker, or none for servers you trust.")] = "bwrap",
    tasks: Annotated[str, typer.Option(help="Glob over task ids.")] = "*",
    limit: Annotated[int, typer.Option(min=0, help="At most this many tasks, evenly spread; 0: all.")] = 0,
    trials: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 8,
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/ENV-AGENT-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where there is one.")] = False,
    cassette: Annotated[
        str | None, typer.Option(help="record: call servers by URL and note their answers; replay: never call one.")
    ] = None,
    attack: Annotated[
        str | None, typer.Option(help=f"Play every task under every attacker's goal: {', '.join(ATTACKS)}.")
    ] = None,
    privileges: Annotated[
        Path | None, typer.Option(help="TOML with rules over tool calls, enforced between agent and servers.")
    ] = None,
    stress: Annotated[
        list[str] | None, typer.Option(help=f"What makes the tools worse: {', '.join(STRESSORS)}; may be repeated.")
    ] = None,
    user_policy: Annotated[
        str | None, typer.Option(help="A model that plays the user, as each task's scenario says: like --policy.")
    ] = None,
    retrieve: Annotated[
        int | None,
        typer.Option(min=0, help="Show the agent this many tools, by the user's words, and one to search others with."),
    ] = None,
    tool_budget: Annotated[
        int | None, typer.Option(help="With --retrieve: characters of all tools that are shown at a time.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
    policy: Annotated[
        str | None, typer.Option(help=f"The model of agent react: {FORMS}.", rich_help_panel=REACT_PANEL)
    ] = None,
    temperature: Annotated[float, typer.Option(help="0: the likeliest, always.", rich_help_panel=REACT_PANEL)] = 1.0,
    top_p: Annotated[float, typer.Option(help="Share of the likeliest.", rich_help_panel=REACT_PANEL)] = 1.0,
    top_k: Annotated[int, typer.Option(help="Number of the likeliest; 0: all.", rich_help_panel=REACT_PANEL)] = 0,
    max_tokens: Annotated[int, typer.Option(help="In one answer.", rich_help_panel=REACT_PANEL)] = 512,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text that ends an answer.", rich_help_panel=REACT_PANEL)
    ] = None,
    max_turns: Annotated[int | None, typer.Option(help="Answers in an episode.", rich_help_panel=REACT_PANEL)] = None,
    max_episode_tokens: Annotated[
        int | None, typer.Option(help="Drawn in an episode.", rich_help_panel=REACT_PANEL)
    ] = None,
    max_episode_seconds: Annotated[
        float | None, typer.Option(help="Of the model's time in an episode.", rich_help_panel=REACT_PANEL)
    ] = None,
    max_episode_cost: Annotated[
        float | None, typer.Option(help="Money for the model in an episode.", rich_help_panel=REACT_PANEL)
    ] = None,
    max_cost: Annotated[
        float | None, typer.Option(help="Money for the run; then no model is asked.", rich_help_panel=REACT_PANEL)
    ] = None,
    prices: Annotated[
        Path | None, typer.Option(help="TOML with prices per million tokens.", rich_help_panel=REACT_PANEL)
    ] = None,
    overflow: Annotated[
        str, typer.Option(help="When the context is full: stop, or drop old results.", rich_help_panel=REACT_PANEL)
    ] = "stop",
    system: Annotated[Path | None, typer.Option(help="File with a system prompt.", rich_help_panel=REACT_PANEL)] = None,
    tool_calls: Annotated[
        str, typer.Option(help="Of an endpoint: native, or text.", rich_help_panel=REACT_PANEL)
    ] = "native",
    tool_format: Annotated[
        str | None,
        typer.Option(help=f"{', '.join(FORMATS)} or transformers; default: by template.", rich_help_panel=REACT_PANEL),
    ] = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Of a vLLM elsewhere: folder of its model's tokenizer.", rich_help_panel=REACT_PANEL),
    ] = None,
    key_env: Annotated[
        str, typer.Option(help="Variable that holds an endpoint's key.", rich_help_panel=REACT_PANEL)
    ] = "OPENAI_API_KEY",
    requests_per_minute: Annotated[
        float | None, typer.Option(help="To an endpoint, at most.", rich_help_panel=REACT_PANEL)
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(help="Seconds for one answer of an endpoint.", rich_help_panel=REACT_PANEL)
    ] = 120.0,
    slots: Annotated[
        int, typer.Option(min=1, help="Answers a local model draws at a time.", rich_help_panel=REACT_PANEL)
    ] = 16,
    device: Annotated[
        str | None, typer.Option(help="Of a local model, such as cpu or cuda.", rich_help_panel=REACT_PANEL)
    ] = None,
) -> None:
    """Run an agent on the tasks of an environment: a name of the catalog, or a Python file, whose code is run.

    Exit code: 0 when every episode was scored, 3 when some were lost to infrastructure, 2 for a usage error,
    4 when --max-cost was reached and 130 when interrupted (continue either with --resume).
    """
    if resume and out is None:
        raise ConfigError("--resume: which run? name its folder with --out")
    if agent not in AGENTS:
        raise ConfigError(f"no agent '{agent}'; have {', '.join(AGENTS)}")
    if max_cost is not None and not max_cost > 0:
        raise ConfigError(f"--max-cost: must be more than 0, not {max_cost}")
    plan_model = partial(
        plan_policy,
        budget=Budget(turns=max_turns, tokens=max_episode_tokens, seconds=max_episode_seconds, cost=max_episode_cost),
        overflow=overflow,
        tool_calls=tool_calls,
        tool_format=tool_format,
        tokenizer=tokenizer,
        system=system,
        prices=prices,
        key_env=key_env,
        requests_per_minute=requests_per_minute,
        timeout_s=request_timeout,
        slots=slots,
        concurrency=concurrency,
        device=device,
    )
    if agent != REACT and policy is not None:
        raise ConfigError(f"--policy: agent '{agent}' has no model; --agent react has")
    drawn = Sampling(max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, stop=tuple(stop or ()))
    played = plan_model(policy, sampling=drawn, max_cost=max_cost) if agent == REACT else None
    # the likeliest answers, as upstream's tau2 asks for: agents meet the same user
    user = plan_model(user_policy, sampling=replace(drawn, temperature=0.0), max_cost=None) if user_policy else None
    worn = WrapperSelection(
        attack=attack,
        privileges=read_privileges(privileges) if privileges else None,
        stress=tuple(stress or ()),
        retrieval=plan_retrieval(retrieve, tool_budget),
    )
    settings = {**(played.config() if played else {}), **(user.user_config() if user else {}), **worn.to_config()}
    plan = Plan(agent=agent, sandbox=sandbox, tasks=tasks, limit=limit, trials=trials, seed=seed, settings=settings)
    wall = get_sandbox(sandbox)
    wall.check()
    loaded = worn.apply(load_named(env))
    loaded = replace(loaded, servers=in_mode(loaded.servers, cassette))
    check_remotes(loaded.servers, wall)
    check_images(wall, [server.image for server in loaded.servers if server.url is None])
    if worn.privileges is not None or worn.retrieval is not None:
        tools = asyncio.run(list_tools(loaded, wall))
        if worn.privileges is not None:
            check_rules(worn.privileges, tools, loaded.suite.tasks)
        if worn.retrieval is not None:
            check_retrieval(worn.retrieval, tuple(tools.values()))
    selected = select_tasks(loaded.suite, plan)  # says what is wrong with the plan before a folder is made
    reap_before_a_run()
    config = plan.config(loaded, source_of(env))
    schedule = Schedule(concurrency=concurrency, max_cost=max_cost)
    with contextlib.ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        loaded = stack.enter_context(with_user(runner, user, loaded, selected))
        make_agent = stack.enter_context(opened(runner, played, loaded, wall, selected)) if played else SCRIPTED[agent]
        folder = out or _unused(Path("runs") / f"{loaded.spec.name}-{agent}-{datetime.now():%Y%m%d-%H%M%S}")
        stack.enter_context(create_run(folder, config, seeds=[seed], versions=_versions(wall, loaded), resume=resume))
        # no episode goes on while one is written: what waits for a lock longer than this ends the run, to be resumed
        store = TrajectoryStore.open(folder, write=True, busy_timeout_s=BUSY_TIMEOUT_S)
        with store, Progress(f"{loaded.spec.name} · {agent}") as progress:
            ended = run_plan(
                loaded,
                wall,
                plan,
                store,
                schedule,
                progress.start,
                progress.advance,
                make_agent=make_agent,
                runner=runner,
            )
        summary = write_report(folder, lambda run: {task.id: task for task in loaded.suite.tasks})
    print_json(summary) if as_json else print_summary(summary)
    if ended is not RunEnd.FINISHED:
        why = "interrupted" if ended is RunEnd.INTERRUPTED else f"--max-cost {max_cost:g} is spent"
        more = "" if ended is RunEnd.INTERRUPTED else ", and a higher --max-cost"
        print(f"gymcp: {why}; to go on, type the same command with: --out {folder} --resume{more}", file=sys.stderr)
        raise typer.Exit(INTERRUPTED if ended is RunEnd.INTERRUPTED else OUT_OF_MONEY)
    if summary["scored"] < summary["episodes"]:
        raise typer.Exit(LOST_TO_INFRA)


def _unused(folder: Path) -> Path:
    """A new folder of that name, or of that name with a number: another run may have begun in the same second."""
    for number in itertools.count(1):
        made = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            made.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise StoreError(f"run folder {made}: cannot be made: {error.strerror or error}") from error
        return made
    raise AssertionError("unreachable: numbers do not end")


def _versions(wall: Sandbox, loaded: LoadedEnv) -> dict[str, str]:
    """What a score may depend on beside gymcp itself."""
    versions = {name: version(name) for name in ("gymnasium", "mcp", "pydantic")}
    if wall.name == "docker":
        return versions | {"images": ", ".join(sorted({image_name(server.image) for server in loaded.servers}))}
    return versions | {"python_inside": ".".join(map(str, interpreter().version))}
