"""``gymcp eval``: run an agent on the tasks of an environment."""

from __future__ import annotations

import itertools
import sys
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import typer

from gymcp.agents.runs import Plan, run_plan, select_tasks
from gymcp.agents.scheduler import Schedule
from gymcp.agents.scripted import SCRIPTED
from gymcp.cli.clean import reap_before_a_run
from gymcp.cli.output import print_json, print_summary
from gymcp.cli.progress import Progress
from gymcp.envs.catalog import load_spec, source_of
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.report import write_report
from gymcp.mcp_servers.sandbox import Sandbox, check_images, get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.docker.images import image_name
from gymcp.store import TrajectoryStore, create_run

BUSY_TIMEOUT_S = 5.0
LOST_TO_INFRA = 3
INTERRUPTED = 130


def command(
    env: Annotated[str, typer.Argument(help="A catalog name (see `gymcp suites`) or the path of an environment file.")],
    agent: Annotated[str, typer.Option(help=f"One of {', '.join(SCRIPTED)}.")] = "oracle",
    sandbox: Annotated[str, typer.Option(help="bwrap, docker, or none for servers you trust.")] = "bwrap",
    tasks: Annotated[str, typer.Option(help="Glob over task ids.")] = "*",
    limit: Annotated[int, typer.Option(min=0, help="At most this many tasks, evenly spread; 0: all.")] = 0,
    trials: Annotated[int, typer.Option(min=1, help="Episodes per task.")] = 1,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 8,
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Run folder; default: runs/ENV-AGENT-TIME.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out where there is one.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Run an agent on the tasks of an environment.

    Exit code: 0 when every episode was scored, 3 when some were lost to infrastructure, 2 for a usage error,
    130 when interrupted (continue with --resume).
    """
    if resume and out is None:
        raise ConfigError("--resume: which run? name its folder with --out")
    plan = Plan(agent=agent, sandbox=sandbox, tasks=tasks, limit=limit, trials=trials, seed=seed)
    if agent not in SCRIPTED:
        raise ConfigError(f"no agent '{agent}'; have {', '.join(SCRIPTED)}")
    wall = get_sandbox(sandbox)
    wall.check()
    loaded = load_env(load_spec(env))
    check_images(wall, [server.image for server in loaded.servers])
    select_tasks(loaded.suite, plan)  # says what is wrong with the plan before a folder is made
    folder = out or _unused(Path("runs") / f"{loaded.spec.name}-{agent}-{datetime.now():%Y%m%d-%H%M%S}")
    reap_before_a_run()
    config = plan.config(loaded, source_of(env))
    with create_run(folder, config, seeds=[seed], versions=_versions(wall, loaded), resume=resume):
        # no episode goes on while one is written: what waits for a lock longer than this ends the run, to be resumed
        store = TrajectoryStore.open(folder, write=True, busy_timeout_s=BUSY_TIMEOUT_S)
        with store, Progress(f"{loaded.spec.name} · {agent}") as progress:
            finished = run_plan(
                loaded, wall, plan, store, Schedule(concurrency=concurrency), progress.start, progress.advance
            )
        summary = write_report(folder)
    print_json(summary) if as_json else print_summary(summary)
    if not finished:
        print(f"gymcp: interrupted; to go on, type the same command with: --out {folder} --resume", file=sys.stderr)
        raise typer.Exit(INTERRUPTED)
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
