"""Gates of a suite: agents whose scores are known in advance must get exactly these."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass

import typer

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, run_until_signalled, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED, applies
from gymcp.cli.exit_codes import INTERRUPTED
from gymcp.cli.progress import Progress
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.protocols import AgentFactory
from gymcp.types import Json, Trajectory

GATE_SCORES = {"oracle": 1.0, "null": 0.0, "mutated": 0.0}
"""Agent -> score that every task must get, except tasks that the suite's own grader passes at once (`gate_score`)."""

ASKING_GATE_SCORES = {"never_asks": 0.0, "asks_late": 0.0, "always_asks": 1.0}
"""Agent -> score that every task must get whose user knows a fact. A question has a cost, which lowers the score net of
the price and is no failure."""


def play(
    loaded: LoadedEnv,
    sandbox: Sandbox,
    plan: Plan,
    concurrency: int,
    *,
    make_agent: AgentFactory | None = None,
    runner: asyncio.Runner | None = None,
    agent_s: float | None = None,
    final_states: dict[str, Json] | None = None,
    progress: Progress | None = None,
) -> list[Trajectory]:
    """The plan's episodes, kept in memory only. Raises ConfigError if its agent applies to no task.

    `make_agent` is needed for an agent that is not scripted, `runner` if its model, or the environment's judge,
    lives on an event loop. `agent_s`: seconds of the agent's own time in an episode. `final_states`: gets the last
    state of each episode, by content address. `progress`: a display that is open; None: one of its own.
    """
    jobs = list(make_jobs(plan, select_tasks(loaded.suite, plan)))
    ended: list[Trajectory] = []
    label = f"{loaded.spec.name} · {plan.agent}"
    with contextlib.nullcontext(progress) if progress is not None else Progress(label) as shown:
        shown.begin(label)
        shown.start(len(jobs))

        def note(rollout: Rollout, last: bool) -> None:
            if last:
                ended.append(rollout.trajectory)
                shown.advance(rollout.trajectory)
                address = rollout.trajectory.final_state
                if final_states is not None and address is not None and address in rollout.states:
                    final_states[address] = rollout.states[address]

        schedule = Schedule(concurrency=concurrency, agent_s=agent_s)
        agents = make_agent or SCRIPTED[plan.agent]
        if not run_until_signalled(run_jobs(loaded, sandbox, agents, jobs, schedule, note), runner):
            raise typer.Exit(INTERRUPTED)
    return ended


def gate_score(loaded: LoadedEnv, agent: str, task: str) -> float:
    """Score that the agent must get on the task."""
    return (
        1.0 if agent == "null" and task in loaded.suite.pass_at_once else {**GATE_SCORES, **ASKING_GATE_SCORES}[agent]
    )


def find_failures(loaded: LoadedEnv, agent: str, ended: Sequence[Trajectory]) -> list[Trajectory]:
    """Episodes whose score is not the required one, or is as high net of a price that was paid; sorted by task."""
    failures = (t for t in ended if t.score != gate_score(loaded, agent, t.task) or _asks_for_free(t))
    return sorted(failures, key=lambda each: each.task)


def _asks_for_free(trajectory: Trajectory) -> bool:
    """True if questions had a cost and the score net of it is the full one."""
    paid = trajectory.components.get("question_cost", 0.0)
    return paid > 0 and trajectory.components.get(NET_OF_PRICE, 0.0) >= 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SuiteGates:
    """Results of one suite's gates, on `sample` of its tasks."""

    suite: str
    tasks: int
    sample: int
    tools: int
    passed: dict[str, tuple[int, int]]
    """Agent -> (episodes that scored 1, episodes); an agent that applies to no task is left out."""
    wrong: tuple[str, ...]
    """Failures: agent, task and reason of each."""
    digests: tuple[int, int]
    """(tasks whose states had the same digests every time and from every agent, tasks)"""
    seconds: float

    def to_json(self) -> dict[str, Json]:
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


def play_gates(loaded: LoadedEnv, sandbox: Sandbox, *, limit: int, concurrency: int) -> SuiteGates:
    """Play the scripted agents on `limit` tasks, evenly spread (0: all), and compare their scores with the gates.

    The agents are oracle (twice, interleaved), null, mutated, random and, if there are facts to ask for, those that
    never ask, ask late or always ask.
    """
    started = time.perf_counter()
    tools = asyncio.run(list_tools(loaded, sandbox))
    passed: dict[str, tuple[int, int]] = {}
    faults: list[str] = []
    starts: dict[str, set[str]] = {}
    ends: dict[str, set[str]] = {}
    sample = 0
    for agent in ("oracle", "oracle", "null", "mutated", "random", *ASKING_GATE_SCORES):
        if not any(applies(agent, task) for task in loaded.suite.tasks):
            continue
        ended = play(loaded, sandbox, Plan(agent=agent, sandbox=sandbox.name, limit=limit), concurrency)
        passed[agent] = (sum(t.score == 1.0 for t in ended), len(ended))
        sample = max(sample, len(ended))
        for trajectory in ended:
            starts.setdefault(trajectory.task, set()).add(trajectory.initial_key)
            if agent == "oracle":
                ends.setdefault(trajectory.task, set()).add(trajectory.final_key)
        if agent != "random":
            faults += [f"{agent}: {t.task}: {t.outcome}: {t.reason}" for t in find_failures(loaded, agent, ended)]
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
