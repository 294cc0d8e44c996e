"""Coverage of `gymcp check`: the parts of an environment that it has not seen, each with the reason."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from gymcp.agents.runner.tool_trials import UnusedTools
from gymcp.agents.strategies.scripted import applies
from gymcp.cli.evaluation.gates import ASKING_GATE_SCORES
from gymcp.cli.servers.verdicts import Unchecked
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.types import Task

MAX_NAMES = 3
"""Tasks or tools that a line names."""


def list_unchecked(env: LoadedEnv, played: Set[str], unused: UnusedTools, sandbox: Sandbox) -> list[Unchecked]:
    """Lines about what no check has seen. `played`: ids of the tasks that were played."""
    lines = [*_of_tasks(env.suite.tasks, played)]
    for server in env.servers:
        lines += _of_server(server)
    lines += _of_tools(env, unused)
    if not sandbox.confined:
        reason = f"with --sandbox {sandbox.name} nothing is confined, so whether a server can read gold is not known"
        lines.append(Unchecked(subject="leaks", reason=reason))
    return lines


def _of_tasks(tasks: Sequence[Task], played: Set[str]) -> Iterator[Unchecked]:
    if left := [task.id for task in tasks if task.id not in played]:
        reason = "they were not played; --limit 0 without --tasks plays all"
        yield Unchecked(subject=f"{len(left)} of {len(tasks)} tasks", reason=reason)
    if bare := [task.id for task in tasks if not applies("oracle", task)]:
        reason = "they have no gold, so nothing shows that they can be solved"
        yield Unchecked(subject=f"{len(bare)} of {len(tasks)} tasks ({_some(bare)})", reason=reason)
    if whole := [task.id for task in tasks if applies("oracle", task) and not applies("mutated", task)]:
        reason = "they name no last_necessary, so nothing shows that a part of the gold is not enough"
        yield Unchecked(subject=f"{len(whole)} of {len(tasks)} tasks ({_some(whole)})", reason=reason)
    if any(applies(agent, task) for agent in ASKING_GATE_SCORES for task in tasks):
        yield Unchecked(subject="questions to the user", reason="gymcp suites --check plays the agents that ask")


def _of_server(server: ServerSpec) -> Iterator[Unchecked]:
    subject = f"server '{server.name}'"
    if server.cassette is not None and not server.recording:
        yield Unchecked(subject=subject, reason="its answers come from a cassette; the server itself was not asked")
    elif server.url is not None:
        yield Unchecked(subject=subject, reason="it runs elsewhere, so no start of it is fresh; only gold was called")
    elif not server.shows_state:
        reason = f"its state is {server.state}: only answers were compared, and what it keeps unseen is not known"
        yield Unchecked(subject=subject, reason=reason)
    if isinstance(server.state, FileState) and server.state.masks:
        masks = [mask if isinstance(mask, str) else f"{mask.files} ({mask.kind})" for mask in server.state.masks]
        yield Unchecked(subject=subject, reason=f"what its masks hide was not compared: {', '.join(masks)}")


def _of_tools(env: LoadedEnv, unused: UnusedTools) -> Iterator[Unchecked]:
    by_reason: dict[str, list[str]] = {}
    for trial in unused.trials:
        if trial.ending == "not called":
            by_reason.setdefault(trial.text, []).append(trial.tool)
    for reason, tools in by_reason.items():
        yield Unchecked(subject=f"{len(tools)} tools ({_some(tools)})", reason=f"not called: {reason}")
    if env.spec.user_tools:
        reason = "the user's tools are called by gold alone"
        yield Unchecked(
            subject=f"{len(env.spec.user_tools)} tools ({_some(sorted(env.spec.user_tools))})", reason=reason
        )


def _some(names: Iterable[str]) -> str:
    known = list(names)
    return ", ".join(known[:MAX_NAMES]) + (", ..." if len(known) > MAX_NAMES else "")
