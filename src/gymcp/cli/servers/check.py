"""``gymcp check``: test whether an environment can be trusted."""

from __future__ import annotations

import asyncio
import signal
import warnings
from pathlib import Path

import typer
from gymnasium.utils.env_checker import check_env

from gymcp.agents.runner.run import TaskPatterns, run_until_signalled
from gymcp.cli.evaluation.grader_judge import plan_judge
from gymcp.cli.exit_codes import INTERRUPTED
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.option_types import read_patterns
from gymcp.cli.policy_options import PolicyPlan
from gymcp.cli.progress import Progress
from gymcp.cli.servers.check_coverage import list_unchecked
from gymcp.cli.servers.gate_checks import play_judged_gates
from gymcp.cli.servers.tool_checks import judge_answers, judge_unused_tools
from gymcp.cli.servers.verdicts import CheckResults, Verdict, print_verdicts
from gymcp.envs.audit.leaks import Leak, find_leaks
from gymcp.envs.catalog import load_spec
from gymcp.envs.gym import McpEnv
from gymcp.envs.spec import LoadedEnv
from gymcp.envs.worlds.tool_listing import list_tools
from gymcp.envs.wrappers.privileges import Privileges, check_rules, find_blocked_gold, read_privileges
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.errors import CassetteMiss
from gymcp.mcp_servers.sandbox import Sandbox, check_images, get_sandbox
from gymcp.mcp_servers.spec import FileState
from gymcp.mcp_servers.transports.http_remote import check_remotes
from gymcp.mcp_servers.workspaces.digester import find_unused_masks


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
    with Progress("check") as progress:
        results = check_environment(env, backend, progress, patterns, limit, concurrency, rules=rules, judge=plan)
    print_verdicts(results, as_json=as_json)
    if not results.passed:
        raise typer.Exit(1)


def check_environment(
    env: str,
    sandbox: Sandbox,
    progress: Progress,
    tasks: TaskPatterns,
    limit: int,
    concurrency: int,
    *,
    rules: Privileges | None = None,
    judge: PolicyPlan | None = None,
) -> CheckResults:
    """Results of all checks of an environment, which `progress` shows as they run; see `gymcp check --help`.

    Raises GymcpError if the environment cannot be loaded or does not run; typer.Exit if it is interrupted.
    """
    loaded = WrapperSelection(privileges=rules).apply(load_spec(env))
    check_remotes(loaded.servers, sandbox)
    check_images(sandbox, [server.image for server in loaded.servers if server.url is None])
    remove_orphans()
    verdicts = [] if rules is None else [_privileges(loaded, sandbox, rules)]
    progress.show(f"{loaded.spec.name} · Gymnasium's checker")
    verdicts.append(_gymnasium(loaded, sandbox))
    gates = play_judged_gates(loaded, judge, sandbox, tasks, limit, concurrency, progress)
    verdicts += [
        *gates.verdicts,
        *_masks(loaded),
        judge_answers(loaded.servers, gates.repeats.answers, gates.unused),
        judge_unused_tools(gates.unused),
    ]
    progress.show(f"{loaded.spec.name} · search for readable gold")
    verdicts.append(_leaks(loaded, sandbox))
    unchecked = list_unchecked(loaded, gates.played, gates.unused, sandbox)
    return CheckResults(env=loaded.spec.name, verdicts=tuple(verdicts), unchecked=tuple(unchecked))


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


def _masks(loaded: LoadedEnv) -> list[Verdict]:
    """Verdict on the masks of files, after the gates and the trials of tools; none if no server has masks."""
    masked = [server for server in loaded.servers if isinstance(server.state, FileState) and server.state.masks]
    unused = [
        f"server '{server.name}': mask {mask} had no effect in any world; mend its pattern, or remove it"
        for server in masked
        if isinstance(server.state, FileState)
        for mask in find_unused_masks(server.name, server.state)
    ]
    if not masked:
        return []
    return [Verdict(check="masks", passed=not unused, detail=unused[0] if unused else "every mask had an effect")]


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
