"""Checks by scripted agents: their scores, answers to gold, the states that tasks start from, gold played twice."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import typer

from gymcp.agents.runner.run import Plan, TaskPatterns, run_until_signalled
from gymcp.agents.runner.tool_trials import UnusedTools, try_unused_tools
from gymcp.agents.strategies.scripted import applies
from gymcp.aio import hold_open
from gymcp.cli.evaluation.gates import GATE_SCORES, find_failures, play
from gymcp.cli.evaluation.grader_judge import add_judge
from gymcp.cli.exit_codes import INTERRUPTED
from gymcp.cli.policy_options import PolicyPlan
from gymcp.cli.progress import Progress
from gymcp.cli.servers.tool_checks import judge_gold
from gymcp.cli.servers.verdicts import Verdict
from gymcp.cli.summary_table import network_line
from gymcp.envs.audit.repeats import Repeats, compare_plays
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import ConfigError
from gymcp.evaluators.names import WITHOUT_NETWORK
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.types import Json, Trajectory

GOLD = "oracle"
"""The agent that is played twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResults:
    """Results of the scripted agents, and of the calls of tools that no gold calls."""

    verdicts: tuple[Verdict, ...]
    played: frozenset[str]
    """Ids of the tasks that an agent has played."""
    repeats: Repeats
    """Comparison of the two plays of gold."""
    unused: UnusedTools


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stage:
    """All that the gates are played with."""

    loaded: LoadedEnv
    runner: asyncio.Runner
    tasks: TaskPatterns
    limit: int
    concurrency: int
    progress: Progress
    states: dict[str, Json] = field(default_factory=dict)
    """The last state of each episode, by content address."""

    def play(self, agent: str, sandbox: Sandbox) -> list[Trajectory]:
        plan = Plan(agent=agent, sandbox=sandbox.name, tasks=self.tasks, limit=self.limit)
        return play(
            self.loaded,
            sandbox,
            plan,
            self.concurrency,
            runner=self.runner,
            final_states=self.states,
            progress=self.progress,
        )


def play_judged_gates(
    loaded: LoadedEnv,
    judge: PolicyPlan | None,
    sandbox: Sandbox,
    tasks: TaskPatterns,
    limit: int,
    concurrency: int,
    progress: Progress,
) -> GateResults:
    """Results of the gates, with the judge that the environment's grader asks if there is a plan of one.

    All share one warm sandbox, except for gold that is played again: its servers are imported anew, so that what an
    import makes up shows, too.
    """
    with asyncio.Runner() as runner, add_judge(runner, judge, loaded) as judged:
        stage = _Stage(
            loaded=judged, runner=runner, tasks=tasks, limit=limit, concurrency=concurrency, progress=progress
        )
        with hold_open(runner, open_warm_sandbox(sandbox)) as warm:
            verdicts, plays = _play_agents(stage, warm)
            progress.show(f"{loaded.spec.name} · tools that no gold calls")
            unused = _try_tools(loaded, warm, runner)
        again = stage.play(GOLD, sandbox) if GOLD in plays else []
    repeats = compare_plays(plays.get(GOLD, ()), again, stage.states)
    ended = [trajectory for each in (*plays.values(), again) for trajectory in each]
    gold = judge_gold(loaded.suite, plays.get(GOLD, ()))
    verdicts += [gold, _judge_starts(loaded, ended), _judge_ends(loaded, repeats)]
    played = frozenset(trajectory.task for trajectory in ended)
    return GateResults(verdicts=tuple(verdicts), played=played, repeats=repeats, unused=unused)


def _play_agents(stage: _Stage, sandbox: Sandbox) -> tuple[list[Verdict], dict[str, list[Trajectory]]]:
    """(verdicts on the scores, episodes by agent) of the agents that apply to a task."""
    verdicts: list[Verdict] = []
    plays: dict[str, list[Trajectory]] = {}
    for agent in GATE_SCORES:
        if not any(applies(agent, task) for task in stage.loaded.suite.tasks):
            detail = "not applicable: no task has what this agent plays"
            verdicts.append(Verdict(check=agent, passed=True, detail=detail, applies=False))
            continue
        try:
            plays[agent] = stage.play(agent, sandbox)
        except ConfigError as error:
            verdicts.append(Verdict(check=agent, passed=False, detail=str(error)))
            continue
        verdicts.append(_judge_scores(stage.loaded, agent, plays[agent]))
    return verdicts, plays


def _try_tools(loaded: LoadedEnv, sandbox: Sandbox, runner: asyncio.Runner) -> UnusedTools:
    results: list[UnusedTools] = []

    async def try_out() -> None:
        results.append(await try_unused_tools(loaded, sandbox))

    if not run_until_signalled(try_out(), runner):
        raise typer.Exit(INTERRUPTED)
    (unused,) = results
    return unused


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
