"""``gymcp stress``: drop of an agent's score when its tools are worse, one stressor at a time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from gymcp.agents.runner.run import Plan, select_tasks
from gymcp.agents.strategies.budgets import Budget
from gymcp.cli.agent_options import AgentPlan, open_agent, plan_agent, plan_program
from gymcp.cli.configs import ModelConfig, ProgramConfig
from gymcp.cli.evaluation.gates import play
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.option_types import read_patterns
from gymcp.cli.output import console, print_json
from gymcp.envs.environment_sources import load_named
from gymcp.envs.spec import EnvSpec
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.envs.wrappers.stress import STRESSORS
from gymcp.errors import ConfigError
from gymcp.evaluators.metrics import MIN_COVERAGE, bounds_of
from gymcp.evaluators.statistics import compare_paired
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Json, Sampling

ADAPTIVE = "adaptive"
Scores = Mapping[str, float | None]
"""Task id -> score; None for a task without one."""


def execute(
    env: str,
    *,
    stressor: list[str] | None,
    agent: str | None,
    agent_sandbox: str,
    agent_stdin: bool,
    agent_mount: list[Path] | None,
    policy: str | None,
    max_tokens: int,
    temperature: float,
    max_episode_seconds: float | None,
    key_env: str,
    request_timeout: float | None,
    sandbox: str,
    tasks: list[str] | None,
    limit: int,
    seed: int,
    concurrency: int,
    min_coverage: float | None,
    as_json: bool,
) -> None:
    """Play the same tasks with the same seeds without and with each stressor; report the drop in the mean score.

    If too few of the tasks have a score, there are the bounds of the mean instead, and no drop.
    """
    sampling = Sampling(max_tokens=max_tokens, temperature=temperature)
    budget = Budget(seconds=max_episode_seconds)
    model = ModelConfig(sampling=sampling, budget=budget, key_env=key_env, request_timeout_s=request_timeout)
    name = agent or (ADAPTIVE if policy is None else None)
    settings = ProgramConfig(sandbox=agent_sandbox, stdin=agent_stdin, mounts=tuple(agent_mount or ()))
    program = plan_program(name, settings, env)
    who = plan_agent(name, policy, model, concurrency=concurrency, max_cost=None, program=program)
    combinations = [tuple(name.split("+")) for name in stressor or STRESSORS]
    backend = get_sandbox(sandbox)
    backend.check()
    for names in combinations:  # an unknown name is an error before anything is played
        if unknown := [name for name in names if name not in STRESSORS]:
            raise ConfigError(f"no stressor '{unknown[0]}'; have {', '.join(STRESSORS)}")
    remove_orphans()
    plan = Plan(agent=who.name, sandbox=sandbox, tasks=read_patterns(tasks), limit=limit, seed=seed)
    before, after = _play_all(load_named(env), backend, plan, who, combinations, concurrency)
    floor = MIN_COVERAGE if min_coverage is None else min_coverage
    unstressed = _measure(before, floor)
    rows = [_row(names, before, scores, floor) for names, scores in zip(combinations, after, strict=True)]
    if as_json:
        summary = {"env": env, "agent": who.name, **({"policy": policy} if policy else {}), "seed": seed}
        print_json({**summary, **unstressed, "min_coverage": floor, "stressors": rows})
        return
    told = f"unstressed {_describe_score(unstressed)}"
    _print_table(" · ".join(filter(None, (env, who.name, policy, f"{len(before)} tasks", told))), rows)
    for row in (unstressed, *rows):
        if row["refused"]:
            text = f"{row.get('stressor', 'unstressed')}: {row['refused']}"
            console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


def _print_table(title: str, rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title=title, title_justify="left", box=None)
    for heading in ("stressor", "score", "drop", "95 % interval", "tasks", "scored"):
        table.add_column(heading, justify="left" if heading == "stressor" else "right", no_wrap=True)
    for row in rows:
        bounds = row.get("ci95")
        table.add_row(
            row["stressor"],
            _describe_score(row),
            "-" if row["drop"] is None else f"{row['drop']:+.3f}",
            "-" if bounds is None else f"{bounds[0]:+.3f} – {bounds[1]:+.3f}",
            str(row["paired"]),
            f"{row['scored']}/{row['tasks']}",
        )
    console.print(table)


def _describe_score(row: Mapping[str, Any]) -> str:
    """ "0.950", or "0.700 .. 0.900" if too few tasks have a score."""
    if row["score"] is not None:
        return f"{row['score']:.3f}"
    low, high = row["bounds"]
    return f"{low:.3f} .. {high:.3f}"


def _play_all(
    spec: EnvSpec,
    sandbox: Sandbox,
    plan: Plan,
    who: AgentPlan,
    combinations: Sequence[tuple[str, ...]],
    concurrency: int,
) -> tuple[Scores, list[Scores]]:
    """Scores without and with each combination; None for a task that was lost to infrastructure.

    The agent's model stays open for all of them.
    """
    unstressed = WrapperSelection().apply(spec)
    tasks = select_tasks(unstressed.suite, plan)
    with asyncio.Runner() as runner, open_agent(runner, who, unstressed, sandbox, tasks) as agents:

        def play_with(names: tuple[str, ...]) -> Scores:
            loaded = WrapperSelection(stress=names).apply(spec) if names else unstressed
            seconds = who.budget.seconds
            ended = play(loaded, sandbox, plan, concurrency, make_agent=agents, runner=runner, agent_s=seconds)
            return {record.task: record.score for record in ended}

        return play_with(()), [play_with(names) for names in combinations]


def _measure(scores: Scores, floor: float) -> dict[str, Json]:
    """The mean score over the tasks that have one, with its bounds over all tasks; refused below the floor."""
    scored = [score for score in scores.values() if score is not None]
    mean = math.fsum(scored) / len(scored) if scored else None
    bounds = bounds_of(mean, len(scored), len(scores))
    assert bounds is not None  # a run has a task
    covered = len(scored) / len(scores)
    refused = ""
    if covered < floor:
        refused = (
            f"{len(scored)} of {len(scores)} tasks have a score, below the floor of {100 * floor:g} %: the mean score"
            f" is between {bounds.low:.3f} (all lost ones scored 0) and {bounds.high:.3f} (all scored 1); to accept"
            f" this coverage: --min-coverage {int(covered * 1000) / 1000:g}"
        )
    return {
        "tasks": len(scores),
        "scored": len(scored),
        "score": None if refused else mean,
        "bounds": [bounds.low, bounds.high],
        "refused": refused or None,
    }


def _row(names: tuple[str, ...], before: Scores, after: Scores, floor: float) -> dict[str, Json]:
    """The score with a stressor, and its drop over the tasks that have a score in both; no drop if one is refused."""
    comparison = compare_paired(
        *({task: [each] for task, each in of.items() if each is not None} for of in (after, before))
    )
    row = {"stressor": "+".join(names), **_measure(after, floor), "paired": comparison.tasks}
    if row["refused"] or _measure(before, floor)["refused"] or comparison.difference is None:
        return {**row, "drop": None}
    bounds = comparison.ci95
    return {
        **row,
        "drop": comparison.difference,
        "ci95": None if bounds is None else [bounds.low, bounds.high],
        "method": "" if bounds is None else bounds.method,
    }
