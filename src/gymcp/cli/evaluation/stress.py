"""``gymcp stress``: drop of an agent's score when its tools are worse, one stressor at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.table import Table

from gymcp.agents.runner.run import Plan, select_tasks
from gymcp.agents.strategies.budgets import Budget
from gymcp.cli.agent_options import AgentPlan, open_agent, plan_agent, plan_program
from gymcp.cli.configs import ModelConfig, ProgramConfig
from gymcp.cli.evaluation.gates import play
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import console, print_json
from gymcp.cli.task_patterns import read_patterns
from gymcp.envs.recorded import load_named
from gymcp.envs.spec import EnvSpec
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.envs.wrappers.stress import STRESSORS
from gymcp.errors import ConfigError
from gymcp.evaluators.statistics import compare_paired
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Json, Sampling

ADAPTIVE = "adaptive"
Scores = Mapping[str, float]
"""Task id -> score."""


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
    as_json: bool,
) -> None:
    """Play the same tasks with the same seeds without and with each stressor; report the drop in the mean score."""
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
    rows = [_row(names, before, scores) for names, scores in zip(combinations, after, strict=True)]
    mean = sum(before.values()) / len(before) if before else None
    if as_json:
        summary = {"env": env, "agent": who.name, **({"policy": policy} if policy else {}), "seed": seed}
        print_json({**summary, "tasks": len(before), "score": mean, "stressors": rows})
        return
    _print_table(" · ".join(filter(None, (env, who.name, policy, f"{len(before)} tasks", f"unstressed {mean}"))), rows)


def _print_table(title: str, rows: Sequence[Mapping[str, Json]]) -> None:
    table = Table(title=title, title_justify="left", box=None)
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


def _play_all(
    spec: EnvSpec,
    sandbox: Sandbox,
    plan: Plan,
    who: AgentPlan,
    combinations: Sequence[tuple[str, ...]],
    concurrency: int,
) -> tuple[Scores, list[Scores]]:
    """Scores without and with each combination; a task that was lost to infrastructure is left out.

    The agent's model stays open for all of them.
    """
    unstressed = WrapperSelection().apply(spec)
    tasks = select_tasks(unstressed.suite, plan)
    with asyncio.Runner() as runner, open_agent(runner, who, unstressed, sandbox, tasks) as agents:

        def scores(names: tuple[str, ...]) -> Scores:
            loaded = WrapperSelection(stress=names).apply(spec) if names else unstressed
            seconds = who.budget.seconds
            ended = play(loaded, sandbox, plan, concurrency, make_agent=agents, runner=runner, agent_s=seconds)
            return {record.task: record.score for record in ended if record.score is not None}

        return scores(()), [scores(names) for names in combinations]


def _row(names: tuple[str, ...], before: Scores, after: Scores) -> dict[str, Json]:
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
