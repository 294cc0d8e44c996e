"""Checks by scripted agents: their scores, the states that tasks start from, and gold that is played twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gymcp.agents.runner.run import Plan, TaskPatterns
from gymcp.agents.strategies.scripted import applies
from gymcp.cli.evaluation.gates import GATE_SCORES, find_failures, play
from gymcp.cli.evaluation.grader_judge import add_judge
from gymcp.cli.policy_options import PolicyPlan
from gymcp.cli.progress import Progress
from gymcp.cli.servers.verdicts import Verdict
from gymcp.cli.summary_table import network_line
from gymcp.envs.audit.repeats import Repeats, compare_plays
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.evaluators.names import WITHOUT_NETWORK
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Json, Trajectory

GOLD = "oracle"
"""The agent that is played twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResults:
    """Results of the scripted agents."""

    verdicts: tuple[Verdict, ...]
    played: frozenset[str]
    """Ids of the tasks that an agent has played."""
    repeats: Repeats
    """Comparison of the two plays of gold."""


def play_judged_gates(
    loaded: LoadedEnv,
    judge: PolicyPlan | None,
    sandbox: Sandbox,
    tasks: TaskPatterns,
    limit: int,
    concurrency: int,
    progress: Progress,
) -> GateResults:
    """Results of the gates, with the judge that the environment's grader asks."""
    if judge is None:
        return _play_gates(loaded, sandbox, tasks, limit, concurrency, progress)
    with asyncio.Runner() as runner, add_judge(runner, judge, loaded) as judged:
        return _play_gates(judged, sandbox, tasks, limit, concurrency, progress, runner)


def _play_gates(
    loaded: LoadedEnv,
    sandbox: Sandbox,
    tasks: TaskPatterns,
    limit: int,
    concurrency: int,
    progress: Progress,
    runner: asyncio.Runner | None = None,
) -> GateResults:
    verdicts: list[Verdict] = []
    plays: dict[str, list[Trajectory]] = {}
    states: dict[str, Json] = {}
    for agent in GATE_SCORES:
        if not any(applies(agent, task) for task in loaded.suite.tasks):
            detail = "not applicable: no task has what this agent plays"
            verdicts.append(Verdict(check=agent, passed=True, detail=detail, applies=False))
            continue
        plan = Plan(agent=agent, sandbox=sandbox.name, tasks=tasks, limit=limit)
        try:
            plays[agent] = play(
                loaded, sandbox, plan, concurrency, runner=runner, final_states=states, progress=progress
            )
        except ConfigError as error:
            verdicts.append(Verdict(check=agent, passed=False, detail=str(error)))
            continue
        verdicts.append(_judge_scores(loaded, agent, plays[agent]))
    again: list[Trajectory] = []
    if GOLD in plays:
        plan = Plan(agent=GOLD, sandbox=sandbox.name, tasks=tasks, limit=limit)
        again = play(loaded, sandbox, plan, concurrency, runner=runner, final_states=states, progress=progress)
    repeats = compare_plays(plays.get(GOLD, ()), again, states)
    ended = [trajectory for each in (*plays.values(), again) for trajectory in each]
    verdicts += [_judge_starts(loaded, ended), _judge_ends(loaded, repeats)]
    played = frozenset(trajectory.task for trajectory in ended)
    return GateResults(verdicts=tuple(verdicts), played=played, repeats=repeats)


def _judge_scores(loaded: LoadedEnv, agent: str, ended: list[Trajectory]) -> Verdict:
    faults = find_failures(loaded, agent, ended)
    at_once = loaded.suite.pass_at_once if agent == "null" else frozenset[str]()
    detail = f"{len(ended) - len(faults)}/{len(ended)} tasks scored {GATE_SCORES[agent]:g}, as they must"
    if known := sum(trajectory.task in at_once for trajectory in ended):
        detail += f", but {known} that the suite's own grader passes at once, as documented"
    if faults:
        detail += f"; first: {faults[0].task}: {faults[0].reason}"
    if line := network_line(_count_without_network(ended)):
        detail += f"; {line}"
    return Verdict(check=agent, passed=not faults, detail=detail)


def _count_without_network(ended: Iterable[Trajectory]) -> dict[str, dict[str, float]]:
    """Tool -> number of its calls that failed for want of network, under the key of `Usage.tools`."""
    counts: Counter[str] = Counter()
    for trajectory in ended:
        counts.update({name: int(used.get(WITHOUT_NETWORK, 0)) for name, used in trajectory.usage.tools.items()})
    return {name: {WITHOUT_NETWORK: count} for name, count in counts.items()}


def _judge_starts(loaded: LoadedEnv, ended: Iterable[Trajectory]) -> Verdict:
    """Verdict on resets, as far as servers show the state that they start from."""
    blind = [server.name for server in loaded.servers if not server.shows_state]
    if len(blind) == len(loaded.servers):
        detail = "not applicable: no server shows its state; the check 'answers' compares what they answer"
        return Verdict(check="reset", passed=True, detail=detail, applies=False)
    started_from: dict[str, set[str]] = {}
    for trajectory in ended:
        started_from.setdefault(trajectory.task, set()).add(trajectory.initial_key)
    clean = sum(len(keys) == 1 for keys in started_from.values())
    detail = f"{clean}/{len(started_from)} tasks started from the same state every time"
    if blind:
        detail += f", but {', '.join(blind)}: see the check 'answers'"
    return Verdict(check="reset", passed=clean == len(started_from), detail=detail)


def _judge_ends(loaded: LoadedEnv, repeats: Repeats) -> Verdict:
    """Verdict on the ends of gold that was played twice."""
    if not repeats.tasks:
        return Verdict(check="repeat", passed=True, detail="not applicable: no gold was played", applies=False)
    same = repeats.tasks - len(repeats.other_ends)
    state = "state" if any(server.shows_state for server in loaded.servers) else "score"
    detail = f"{same}/{repeats.tasks} tasks ended with the same {state} when gold was played twice"
    if repeats.other_ends:
        detail += f"; first: {repeats.other_ends[0]}"
    return Verdict(check="repeat", passed=not repeats.other_ends, detail=detail)
