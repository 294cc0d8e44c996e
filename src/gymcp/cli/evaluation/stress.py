"""``gymcp stress``: how much worse an agent does when its tools are worse, one stressor at a time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.table import Table

from gymcp.agents.runner.run import Plan
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.cli.evaluation.gates import play
from gymcp.cli.machine.clean import reap_before_a_run
from gymcp.cli.output import console, print_json
from gymcp.envs.catalog import load_spec
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.envs.wrappers.stress import STRESSORS
from gymcp.errors import ConfigError
from gymcp.evaluators.statistics import compare_paired
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Json


def command(
    env: Annotated[str, typer.Argument(help="A catalog name or the path of an environment file.")],
    stressor: Annotated[
        list[str] | None, typer.Option(help="One of them, or several joined by + ; may be repeated. Default: each.")
    ] = None,
    agent: Annotated[str, typer.Option(help=f"One of {', '.join(SCRIPTED)}.")] = "adaptive",
    sandbox: Annotated[str, typer.Option(help="bwrap, docker, or none for servers you trust.")] = "bwrap",
    tasks: Annotated[str, typer.Option(help="Glob over task ids.")] = "*",
    limit: Annotated[int, typer.Option(min=0, help="Tasks, evenly spread; 0: all.")] = 40,
    seed: Annotated[int, typer.Option(help="Of everything drawn at random.")] = 0,
    concurrency: Annotated[int, typer.Option(min=1, help="Episodes at a time.")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Play the same tasks with the same seeds without and with each stressor; report the drop in the mean score, with
    its 95 % interval over the tasks. A model is stressed by `gymcp eval --stress`."""
    if agent not in SCRIPTED:
        raise ConfigError(f"no agent '{agent}'; have {', '.join(SCRIPTED)}")
    chosen = [tuple(name.split("+")) for name in stressor or STRESSORS]
    wall = get_sandbox(sandbox)
    wall.check()
    for names in chosen:  # what is not there is said before anything is played
        if unknown := [name for name in names if name not in STRESSORS]:
            raise ConfigError(f"no stressor '{unknown[0]}'; have {', '.join(STRESSORS)}")
    reap_before_a_run()
    plan = Plan(agent=agent, sandbox=sandbox, tasks=tasks, limit=limit, seed=seed)
    before = _scores(env, wall, plan, (), concurrency)
    rows = [_row(names, before, _scores(env, wall, plan, names, concurrency)) for names in chosen]
    mean = sum(before.values()) / len(before) if before else None
    if as_json:
        print_json({"env": env, "agent": agent, "seed": seed, "tasks": len(before), "score": mean, "stressors": rows})
        return
    table = Table(title=f"{env} · {agent} · {len(before)} tasks · unstressed {mean}", title_justify="left", box=None)
    for heading in ("stressor", "score", "drop", "95 % interval", "tasks"):
        table.add_column(heading, justify="left" if heading == "stressor" else "right", no_wrap=True)
    for row in rows:
        if row["drop"] is None:
            table.add_row(row["stressor"], "-", "-", "-", "0")
            continue
        bounds = row["ci95"]
        table.add_row(
            row["stressor"],
            f"{row['score']:.3f}",
            f"{row['drop']:+.3f}",
            "-" if bounds is None else f"{bounds[0]:+.3f} – {bounds[1]:+.3f}",
            str(row["tasks"]),
        )
    console.print(table)


def _scores(env: str, wall: Sandbox, plan: Plan, names: tuple[str, ...], concurrency: int) -> dict[str, float]:
    """By task; what was lost to infrastructure has none."""
    loaded = WrapperSelection(stress=names).apply(load_spec(env))
    return {t.task: t.score for t in play(loaded, wall, plan, concurrency) if t.score is not None}


def _row(names: tuple[str, ...], before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Json]:
    found = compare_paired(
        {task: [score] for task, score in after.items()}, {task: [score] for task, score in before.items()}
    )
    row: dict[str, Json] = {"stressor": "+".join(names), "tasks": found.tasks, "drop": found.difference}
    if found.difference is None:
        return row
    score = sum(after[task] for task in before.keys() & after.keys()) / found.tasks
    bounds = found.ci95
    method = "" if bounds is None else bounds.method
    return {**row, "score": score, "ci95": None if bounds is None else [bounds.low, bounds.high], "method": method}
