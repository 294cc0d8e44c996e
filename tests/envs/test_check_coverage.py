"""`gymcp check` names what it did not check, with the reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gymcp.agents.runner.tool_trials import ToolTrial, UnusedTools
from gymcp.cli.servers.check_coverage import list_unchecked
from gymcp.envs.spec import EnvSpec, LoadedEnv
from gymcp.evaluators.graders import calls_made
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.types import GoldTurn, Suite, Task, ToolCall

CALL = ToolCall(id="1", name="get")
GOLD = Task(id="gold", prompts=("?",), gold=(GoldTurn(calls=(CALL,)),), last_necessary=(0, 0))
CONFINED: Any = SimpleNamespace(name="bwrap", confined=True)
NOTHING_UNUSED = UnusedTools(servers={"get": "kv"}, trials=())


def environment(*servers: ServerSpec, tasks: tuple[Task, ...] = (GOLD,)) -> LoadedEnv:
    suite = Suite(name="s", version="1", tasks=tasks)
    return LoadedEnv(
        spec=EnvSpec(name="e", servers=servers, suite=suite, grade=calls_made()), servers=servers, suite=suite
    )


def lines(env: LoadedEnv, played: set[str], unused: UnusedTools = NOTHING_UNUSED, sandbox: Any = CONFINED) -> list[str]:
    return [f"{each.subject}: {each.reason}" for each in list_unchecked(env, played, unused, sandbox)]


def test_nothing_is_named_if_all_was_checked() -> None:
    assert lines(environment(ServerSpec(name="kv", state=FileState())), {"gold"}) == []


def test_tasks_that_were_not_played_or_lack_gold_are_named() -> None:
    tasks = (GOLD, replace(GOLD, id="whole", last_necessary=None), Task(id="bare", prompts=("?",)))
    env = environment(ServerSpec(name="kv", state="declared"), tasks=tasks)
    assert lines(env, {"gold", "whole"}) == [
        "1 of 3 tasks: they were not played; --limit 0 without --tasks plays all",
        "1 of 3 tasks (bare): they have no gold, so nothing shows that they can be solved",
        "1 of 3 tasks (whole): they name no last_necessary, so nothing shows that a part of the gold is not enough",
    ]


def test_servers_without_observable_state_are_named() -> None:
    servers = (
        ServerSpec(name="blind"),
        ServerSpec(name="far", url="https://x.invalid/mcp", state="stateless"),
        ServerSpec(name="taped", url="https://x.invalid/mcp", cassette=Path("taped.jsonl")),
        ServerSpec(name="logs", state=FileState(masks=("*.log",))),
    )
    assert lines(environment(*servers), {"gold"}) == [
        "server 'blind': its state is opaque: only answers were compared, and what it keeps unseen is not known",
        "server 'far': it runs elsewhere, so no start of it is fresh; only gold was called",
        "server 'taped': its answers come from a cassette; the server itself was not asked",
        "server 'logs': what its masks hide was not compared: *.log",
    ]


def test_tools_that_were_not_called_and_a_missing_sandbox_are_named() -> None:
    why = "nothing is confined"
    trials = tuple(ToolTrial(tool=tool, ending="not called", text=why) for tool in ("a", "b", "c", "d"))
    env = environment(ServerSpec(name="kv", state="declared"))
    unused = UnusedTools(servers=dict.fromkeys("abcd", "kv"), trials=trials)
    assert lines(env, {"gold"}, unused, SimpleNamespace(name="none", confined=False)) == [
        "4 tools (a, b, c, ...): not called: nothing is confined",
        "leaks: with --sandbox none nothing is confined, so whether a server can read gold is not known",
    ]
