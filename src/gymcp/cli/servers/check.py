"""``gymcp check``: test whether an environment can be trusted."""

from __future__ import annotations

import asyncio
import signal
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer
from gymnasium.utils.env_checker import check_env

from gymcp.agents.runner.run import Plan, TaskPatterns, run_until_signalled
from gymcp.agents.runner.tool_trials import ToolTrial, UnusedTools, try_unused_tools
from gymcp.agents.strategies.scripted import applies
from gymcp.cli.evaluation.gates import GATE_SCORES, INTERRUPTED, find_failures, play
from gymcp.cli.evaluation.grader_judge import add_judge, plan_judge
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.policy_options import PolicyPlan
from gymcp.cli.task_patterns import read_patterns
from gymcp.envs.audit.leaks import Leak, find_leaks
from gymcp.envs.catalog import load_spec
from gymcp.envs.gym import McpEnv
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.privileges import Privileges, check_rules, find_blocked_gold, read_privileges
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.errors import CassetteMiss, ConfigError
from gymcp.mcp_servers.sandbox import Sandbox, check_images, get_sandbox
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.transports.http_remote import check_remotes
from gymcp.mcp_servers.workspaces.digester import find_unused_masks
from gymcp.types import Json

MAX_NAMES = 10
"""Tools that a detail names."""
MAX_ANSWER = 160
"""Characters of a tool's answer that a detail quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    check: str
    passed: bool
    detail: str
    applies: bool = True
    """False if there is nothing to check: the check passes, and its detail says why."""


def execute(
    env: str,
    *,
    sandbox: str,
    tasks: list[str] | None,
    limit: int,
    concurrency: int,
    privileges: Path | None,
    judge: str | None,
    as_json: bool,
) -> None:
    """Check an environment, with `privileges` under these rules. Exit code 1 if a check fails.

    `judge`: the model that the environment's grader asks.
    """
    plan = plan_judge(judge, concurrency=concurrency)
    patterns = read_patterns(tasks)
    backend = get_sandbox(sandbox)
    backend.check()
    rules = read_privileges(privileges) if privileges else None
    loaded = WrapperSelection(privileges=rules).apply(load_spec(env))
    check_remotes(loaded.servers, backend)
    check_images(backend, [server.image for server in loaded.servers if server.url is None])
    remove_orphans()
    verdicts = [] if rules is None else [_privileges(loaded, backend, rules)]
    verdicts += [
        _gymnasium(loaded, backend),
        *_judged_gates(loaded, plan, backend, patterns, limit, concurrency),
        *_masks(loaded),
        _try_unused_tools(loaded, backend),
        _leaks(loaded, backend),
    ]
    if as_json:
        print_json(
            {"env": loaded.spec.name, "passed": all(verdict.passed for verdict in verdicts)}
            | {"checks": {verdict.check: _to_json(verdict) for verdict in verdicts}}
        )
    else:
        for verdict in verdicts:
            word, colour = ("pass", "green") if verdict.passed else ("FAIL", "red")
            word, colour = (word, colour) if verdict.applies else ("n/a ", "dim")
            console.print(word, style=colour, end="")
            console.print(f"  {verdict.check:<12}", end="")
            console.print(in_one_line(verdict.detail), markup=False, highlight=False)
    if not all(verdict.passed for verdict in verdicts):
        raise typer.Exit(1)


def _to_json(verdict: Verdict) -> dict[str, Json]:
    return {"passed": verdict.passed, "applies": verdict.applies, "detail": verdict.detail}


def _privileges(loaded: LoadedEnv, sandbox: Sandbox, rules: Privileges) -> Verdict:
    check_rules(rules, asyncio.run(list_tools(loaded, sandbox)), loaded.suite.tasks)
    blocks = list(find_blocked_gold(loaded.suite.tasks, rules))
    calls = sum(len(turn.calls) for task in loaded.suite.tasks for turn in task.gold)
    detail = f"{len(blocks)} of {calls} gold calls of {len(loaded.suite.tasks)} tasks are blocked"
    if blocks:
        task, call = blocks[0]
        detail += f"; first: {task.id}: {call.name}({call.arguments})"
    return Verdict(check="privileges", passed=not blocks, detail=detail)


def _gymnasium(loaded: LoadedEnv, sandbox: Sandbox) -> Verdict:
    env = McpEnv(loaded, sandbox=sandbox, render_mode="ansi")
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)  # the servers are closed on exit
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            check_env(env, skip_render_check=True)
    except AssertionError as error:
        return Verdict(check="check_env", passed=False, detail=str(error))
    except CassetteMiss:
        detail = "not applicable: its random calls are not on the cassette"
        return Verdict(check="check_env", passed=True, detail=detail, applies=False)
    finally:
        env.close()
        signal.signal(signal.SIGTERM, before)
    return Verdict(check="check_env", passed=True, detail=f"Gymnasium's checker is content ({len(caught)} remarks)")


def _judged_gates(
    loaded: LoadedEnv, judge: PolicyPlan | None, sandbox: Sandbox, tasks: TaskPatterns, limit: int, concurrency: int
) -> list[Verdict]:
    """Verdicts of the gates, with the judge that the environment's grader asks."""
    if judge is None:
        return _gates(loaded, sandbox, tasks, limit, concurrency)
    with asyncio.Runner() as runner, add_judge(runner, judge, loaded) as judged:
        return _gates(judged, sandbox, tasks, limit, concurrency, runner)


def _gates(
    loaded: LoadedEnv,
    sandbox: Sandbox,
    tasks: TaskPatterns,
    limit: int,
    concurrency: int,
    runner: asyncio.Runner | None = None,
) -> list[Verdict]:
    verdicts = []
    started_from: dict[str, set[str]] = {}
    for agent, score in GATE_SCORES.items():
        if not any(applies(agent, task) for task in loaded.suite.tasks):
            detail = "not applicable: no task has what this agent plays"
            verdicts.append(Verdict(check=agent, passed=True, detail=detail, applies=False))
            continue
        plan = Plan(agent=agent, sandbox=sandbox.name, tasks=tasks, limit=limit)
        try:
            ended = play(loaded, sandbox, plan, concurrency, runner=runner)
        except ConfigError as error:
            verdicts.append(Verdict(check=agent, passed=False, detail=str(error)))
            continue
        for trajectory in ended:
            started_from.setdefault(trajectory.task, set()).add(trajectory.initial_key)
        at_once = loaded.suite.pass_at_once if agent == "null" else frozenset[str]()
        faults = find_failures(loaded, agent, ended)
        detail = f"{len(ended) - len(faults)}/{len(ended)} tasks scored {score:g}, as they must"
        if known := sum(trajectory.task in at_once for trajectory in ended):
            detail += f", but {known} that the suite's own grader passes at once, as documented"
        if faults:
            detail += f"; first: {faults[0].task}: {faults[0].reason}"
        verdicts.append(Verdict(check=agent, passed=not faults, detail=detail))
    clean = sum(len(keys) == 1 for keys in started_from.values())
    detail = f"{clean}/{len(started_from)} tasks started from the same state every time"
    verdicts.append(Verdict(check="reset", passed=clean == len(started_from), detail=detail))
    return verdicts


def _masks(loaded: LoadedEnv) -> list[Verdict]:
    """Verdict on the masks of files, after the gates; none if no server has masks."""
    masked = [server for server in loaded.servers if isinstance(server.state, FileState) and server.state.masks]
    unused = [
        f"server '{server.name}': mask {mask} had no effect in any world of the gates; mend its pattern, or remove it"
        for server in masked
        if isinstance(server.state, FileState)
        for mask in find_unused_masks(server.name, server.state)
    ]
    if not masked:
        return []
    return [Verdict(check="masks", passed=not unused, detail=unused[0] if unused else "every mask had an effect")]


def _try_unused_tools(loaded: LoadedEnv, sandbox: Sandbox) -> Verdict:
    found: list[UnusedTools] = []

    async def try_out() -> None:
        found.append(await try_unused_tools(loaded, sandbox))

    if not run_until_signalled(try_out()):
        raise typer.Exit(INTERRUPTED)
    (unused,) = found
    if not unused.trials:
        return Verdict(check="tools", passed=True, detail=f"gold calls each of the {unused.tools} tools")
    by_ending: dict[str, list[ToolTrial]] = {}
    for trial in unused.trials:
        by_ending.setdefault(trial.ending, []).append(trial)
    names = _enumerate([trial.tool for trial in unused.trials])
    parts = [f"gold never calls {len(unused.trials)} of {unused.tools} tools: {names}"]
    if made := len(unused.trials) - len(by_ending.get("not called", ())):
        parts.append(f"called once each: {len(by_ending.get('answered', ()))} of {made} answered")
    if errors := by_ending.get("error"):
        parts.append(f"{len(errors)} answered with an error, such as {errors[0].tool}: {errors[0].text[:MAX_ANSWER]}")
    if left := by_ending.get("not called"):
        parts.append(f"{len(left)} not called: {left[0].text}")
    defects = by_ending.get("defect", [])
    if defects:
        said = "; ".join(f"{trial.tool}: {trial.text[:MAX_ANSWER]}" for trial in defects[:MAX_NAMES])
        parts.insert(0, f"{len(defects)} have a defect: {said}")
    return Verdict(check="tools", passed=not defects, detail="; ".join(parts))


def _enumerate(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMES} more" if len(names) > MAX_NAMES else ""
    return ", ".join(names[:MAX_NAMES]) + more


def _leaks(loaded: LoadedEnv, sandbox: Sandbox) -> Verdict:
    if not sandbox.confined:
        return Verdict(check="leaks", passed=True, detail="not applicable: nothing is confined", applies=False)
    leaks: list[Leak] = []

    async def search() -> None:
        leaks.extend(await find_leaks(loaded, sandbox))

    if not run_until_signalled(search()):
        raise typer.Exit(INTERRUPTED)
    if leaks:
        detail = f"{len(leaks)} pieces of gold are readable; first: {leaks[0].file}: {leaks[0].text[:100]}"
        return Verdict(check="leaks", passed=False, detail=detail)
    return Verdict(check="leaks", passed=True, detail="no file that is readable from inside holds gold of any task")
