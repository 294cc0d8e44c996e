"""``gymcp stress``: drop of an agent's score when its tools are worse, one stressor at a time."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from gymcp.agents.runner.run import Plan
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.cli.evaluation.gates import play
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import console, print_json
from gymcp.cli.task_patterns import read_patterns
from gymcp.envs.catalog import load_spec
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.envs.wrappers.stress import STRESSORS
from gymcp.errors import ConfigError
from gymcp.evaluators.statistics import compare_paired
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Json


def execute(
    env: str,
    *,
    stressor: list[str] | None,
    agent: str,
    sandbox: str,
    tasks: list[str] | None,
    limit: int,
    seed: int,
    concurrency: int,
    as_json: bool,
) -> None:
    """Play the same tasks with the same seeds without and with each stressor; report the drop in the mean score."""
    if agent not in SCRIPTED:
        raise ConfigError(f"no agent '{agent}'; have {', '.join(SCRIPTED)}")
    combinations = [tuple(name.split("+")) for name in stressor or STRESSORS]
    backend = get_sandbox(sandbox)
    backend.check()
    for names in combinations:  # an unknown name is an error before anything is played
        if unknown := [name for name in names if name not in STRESSORS]:
            raise ConfigError(f"no stressor '{unknown[0]}'; have {', '.join(STRESSORS)}")
    remove_orphans()
    plan = Plan(agent=agent, sandbox=sandbox, tasks=read_patterns(tasks), limit=limit, seed=seed)
    before = _scores(env, backend, plan, (), concurrency)
    rows = [_row(names, before, _scores(env, backend, plan, names, concurrency)) for names in combinations]
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


def _scores(env: str, sandbox: Sandbox, plan: Plan, names: tuple[str, ...], concurrency: int) -> dict[str, float]:
    """Task id -> score; a task that was lost to infrastructure is left out."""
    loaded = WrapperSelection(stress=names).apply(load_spec(env))
    return {t.task: t.score for t in play(loaded, sandbox, plan, concurrency) if t.score is not None}


def _row(names: tuple[str, ...], before: Mapping[str, float], after: Mapping[str, float]) -> dict[str, Json]:
    comparison = compare_paired(
        {task: [score] for task, score in after.items()}, {task: [score] for task, score in before.items()}
    )
    row: dict[str, Json] = {"stressor": "+".join(names), "tasks": comparison.tasks, "drop": comparison.difference}
    if comparison.difference is None:
        return row
    score = sum(after[task] for task in before.keys() & after.keys()) / comparison.tasks
    bounds = comparison.ci95
    method = "" if bounds is None else bounds.method
    return {**row, "score": score, "ci95": None if bounds is None else [bounds.low, bounds.high], "method": method}
