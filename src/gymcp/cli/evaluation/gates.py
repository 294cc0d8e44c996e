"""What every suite must score with agents whose scores are known in advance."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, run_until_signalled, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, applies
from gymcp.cli.progress import Progress
from gymcp.envs.episodes.tool_listing import list_tools
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Json, Trajectory

INTERRUPTED = 130
EXPECTED = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}
"""Agent -> the score that every task must get, but for what the suite's own grader passes at once (`expected`)."""

EXPECTED_OF_ASKING = {"never_asks": 0.0, "asks_late": 0.0, "always_asks": 1.0}
"""The same on tasks of which the user knows a fact; what is asked needlessly costs, and is no failure."""


def play(loaded: LoadedEnv, wall: Sandbox, plan: Plan, concurrency: int) -> list[Trajectory]:
    """The plan's episodes, kept in memory only. Raises ConfigError where its agent has nothing to play."""
    jobs = list(make_jobs(plan, select_tasks(loaded.suite, plan)))
    ended: list[Trajectory] = []
    with Progress(f"{loaded.spec.name} · {plan.agent}") as progress:
        progress.start(len(jobs))

        def note(rollout: Rollout, last: bool) -> None:
            if last:
                ended.append(rollout.trajectory)
                progress.advance(rollout.trajectory)

        schedule = Schedule(concurrency=concurrency)
        if not run_until_signalled(run_jobs(loaded, wall, SCRIPTED[plan.agent], jobs, schedule, note)):
            raise typer.Exit(INTERRUPTED)
    return ended


def expected(loaded: LoadedEnv, agent: str, task: str) -> float:
    """The score that the agent must get on the task."""
    return 1.0 if agent == "null" and task in loaded.suite.pass_at_once else {**EXPECTED, **EXPECTED_OF_ASKING}[agent]


def wrong(loaded: LoadedEnv, agent: str, ended: Sequence[Trajectory]) -> list[Trajectory]:
    """The episodes with another score than they must have, by task."""
    return sorted((t for t in ended if t.score != expected(loaded, agent, t.task)), key=lambda each: each.task)


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteGates:
    """The gates of one suite, on `sample` of its tasks."""

    suite: str
    tasks: int
    sample: int
    tools: int
    passed: dict[str, tuple[int, int]]
    """Agent -> (episodes that scored 1, episodes); an agent that applies to no task is left out."""
    wrong: tuple[str, ...]
    """What is not as it must be: agent, task and reason."""
    digests: tuple[int, int]
    """(tasks whose states had the same digests both times and from every agent, tasks)"""
    seconds: float

    def row(self) -> dict[str, Json]:
        return {
            "suite": self.suite,
            "tasks": self.tasks,
            "sample": self.sample,
            "tools": self.tools,
            "passed": {agent: list(counts) for agent, counts in self.passed.items()},
            "digests": list(self.digests),
            "seconds": round(self.seconds, 1),
            "wrong": list(self.wrong),
        }


def gates_of(loaded: LoadedEnv, wall: Sandbox, *, limit: int, concurrency: int) -> SuiteGates:
    """Plays oracle (twice, interleaved), null, mutated and random on `limit` tasks, evenly spread; 0: all.

    Those who never, late or always ask, too, where there is something to ask for.
    """
    started = time.perf_counter()
    tools = asyncio.run(list_tools(loaded, wall))
    passed: dict[str, tuple[int, int]] = {}
    faults: list[str] = []
    starts: dict[str, set[str]] = {}
    ends: dict[str, set[str]] = {}
    sample = 0
    for agent in ("oracle", "oracle", "null", "mutated", "random", *EXPECTED_OF_ASKING):
        if not any(applies(agent, task) for task in loaded.suite.tasks):
            continue
        ended = play(loaded, wall, Plan(agent=agent, sandbox=wall.name, limit=limit), concurrency)
        passed[agent] = (sum(t.score == 1.0 for t in ended), len(ended))
        sample = max(sample, len(ended))
        for trajectory in ended:
            starts.setdefault(trajectory.task, set()).add(trajectory.initial_key)
            if agent == "oracle":
                ends.setdefault(trajectory.task, set()).add(trajectory.final_key)
        if agent != "random":
            faults += [f"{agent}: {t.task}: {t.outcome}: {t.reason}" for t in wrong(loaded, agent, ended)]
        else:
            faults += [f"{agent}: {t.task}: {t.outcome}: {t.reason}" for t in ended if t.score is None]
    same = {task for task, keys in starts.items() if len(keys) == 1 and len(ends.get(task, {""})) == 1}
    faults += [f"digests: {task}: not the same every time" for task in sorted(starts.keys() - same)]
    return SuiteGates(
        suite=loaded.spec.name,
        tasks=len(loaded.suite.tasks),
        sample=sample,
        tools=len(tools),
        passed=passed,
        wrong=tuple(dict.fromkeys(faults)),
        digests=(len(same), len(starts)),
        seconds=time.perf_counter() - started,
    )
