"""Seventy servers in one episode: the cost to open them, and to show an agent a few of their tools.

Prints a table; with --json one object. Eager: every server of the environment is opened with the episode, as in an
environment that is not lazy. Lazy: the same servers, each started by the first call. Warm: templates run and the pool
is full. Tool lists and baselines are known in both: to make them, the first episode on a machine starts each server
that it calls three times (eager: twice), once to list its tools and once as the witness of a clean reset. Processes and
memory are those of this process's descendants; memory is the proportional share (PSS), so shared pages count once.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace

from child_processes import measure_descendants
from report_table import Result, against, options, show

from gymcp.agents.runner.run import Plan
from gymcp.cli.evaluation.gates import play
from gymcp.envs import catalog
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.envs.worlds.tool_listing import ToolListing, make_tool_listing
from gymcp.envs.worlds.toolbox import Toolbox
from gymcp.envs.worlds.world import EpisodeSetup, World, open_world
from gymcp.envs.wrappers.bm25 import rank_tools
from gymcp.envs.wrappers.registry import WrapperSelection
from gymcp.envs.wrappers.retrieval import Retrieval, definition_chars
from gymcp.envs.wrappers.retrieval_recall import measure_recall
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.tool_list_cache import evict_tools, load_tool_lists
from gymcp.types import Task

CALL_TIMEOUT_S = 30.0
BUDGETS = (9_000, 12_000, 24_000)
"""Numbers of characters that the tools on offer may take."""
_BEGAN = time.perf_counter()


def main() -> None:
    args = options(__doc__, "fewer repetitions, 4 tasks played").parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    env = load_env(catalog.load_spec("toolshelf"))
    results = asyncio.run(measure_openings(env, sandbox, (1, 2) if args.quick else (2, 5)))
    results += measure_retrieval(env, asyncio.run(make_tool_listing(env, sandbox)))
    results += play_with_budgets(sandbox, 4 if args.quick else 18)
    show("tool_scale", results, as_json=args.json)


async def measure_openings(env: LoadedEnv, sandbox: Sandbox, counts: tuple[int, int]) -> list[Result]:
    """Cost to open an episode's world in every way, and to get the tool lists alone.

    `counts`: numbers of eager and of lazy worlds.
    """
    task = next(task for task in env.suite.tasks if task.tags[0] == "several")
    lazy, eager = env, replace(env, spec=replace(env.spec, lazy=False))
    of_eager, of_lazy = counts
    results = [Result(metric="servers", value=len(env.servers), unit="")]
    for server in env.servers:
        evict_tools(server)
    async with open_warm_sandbox(sandbox) as warm:
        learnt = await _seconds(lambda: _lists(env, warm))
    known = await _seconds(lambda: _lists(env, sandbox))
    listed = Result(metric="lists: every server started to be listed", value=learnt * 1000, unit="ms")
    results += [listed, against("lists: known by their hash", known * 1000, "ms", listed)]
    _say("lists")
    cold_eager = await _measure_worlds(eager, sandbox, task, 1)
    _say("cold, eager")
    await _measure_worlds(lazy, sandbox, task, 1)  # records the baselines
    cold_lazy = await _measure_worlds(lazy, sandbox, task, of_lazy)
    _say("cold, lazy")
    async with open_warm_sandbox(sandbox) as warm:
        assert isinstance(warm, WarmSandbox)
        await _measure_worlds(eager, warm, task, 2)  # starts the templates and fills the pools
        await warm.wait_until_full()
        _say("templates and spares")
        warm_eager = await _measure_worlds(eager, warm, task, of_eager, warm)
        _say("warm, eager")
        warm_lazy = await _measure_worlds(lazy, warm, task, of_lazy, warm)
        _say("warm, lazy")
    for name, old, new in (("cold", cold_eager, cold_lazy), ("warm", warm_eager, warm_lazy)):
        for what, unit in _FIGURES:
            base = Result(metric=f"{name}, eager: {what}", value=old[what], unit=unit)
            results += [base, against(f"{name}, lazy: {what}", new[what], unit, base) if old[what] else base]
    return results


def _say(what: str) -> None:
    print(f"{what}: done after {time.perf_counter() - _BEGAN:.0f} s", file=sys.stderr, flush=True)


_FIGURES = (
    ("open", "ms"),
    ("open and the task's calls", "ms"),
    ("processes when open", ""),
    ("processes after the calls", ""),
    ("memory when open", "MB"),
    ("memory after the calls", "MB"),
)


async def _measure_worlds(
    env: LoadedEnv, sandbox: Sandbox, task: Task, count: int, warm: WarmSandbox | None = None
) -> dict[str, float]:
    """Medians of `_FIGURES` over `count` worlds of the task, in which its gold calls are made."""
    rows: list[list[float]] = []
    for seed in range(count):
        if warm is not None:
            await warm.wait_until_full()
        before = measure_descendants()
        started = time.perf_counter()
        async with open_world(EpisodeSetup(env=env, sandbox=sandbox, task=task, seed=seed)) as world:
            open_s, after_opening = time.perf_counter() - started, measure_descendants()
            again = time.perf_counter()
            await _call_all(world, task)
            whole = open_s + time.perf_counter() - again
            after_calls = measure_descendants()
        counts = [after_opening[n] - before[n] for n in (0, 1)], [after_calls[n] - before[n] for n in (0, 1)]
        rows.append([open_s * 1000, whole * 1000, counts[0][0], counts[1][0], counts[0][1], counts[1][1]])
    return {name: statistics.median(row[n] for row in rows) for n, (name, _) in enumerate(_FIGURES)}


async def _call_all(world: World, task: Task) -> None:
    box = Toolbox(world.servers, None)
    for call in task.gold[0].calls:
        assert isinstance(call.arguments, dict)
        result = await box.dispatch(call, call.arguments, timeout_s=CALL_TIMEOUT_S)
        assert not result.is_error, result.content
    await world.update()


async def _lists(env: LoadedEnv, sandbox: Sandbox) -> None:
    await load_tool_lists(env.servers, sandbox)


async def _seconds(work: Callable[[], Awaitable[None]]) -> float:
    started = time.perf_counter()
    await work()
    return time.perf_counter() - started


def measure_retrieval(env: LoadedEnv, offer: ToolListing) -> list[Result]:
    """Characters of all tools in a prompt and of the retrieved ones, the time to rank tools, and the recall."""
    tools = tuple(offer.tools.values())
    everything = Result(metric="characters of all tools", value=sum(map(definition_chars, tools)), unit="")
    results = [Result(metric="tools", value=len(tools), unit=""), everything]
    results += [against("characters within the default budget, at most", Retrieval().budget, "", everything)]
    prompts = [task.prompts[0] for task in env.suite.tasks]
    rank_tools(tools, prompts[0], offer.servers)
    started = time.perf_counter()
    for prompt in prompts:
        rank_tools(tools, prompt, offer.servers)
    results.append(
        Result(metric="ranking for one request", value=(time.perf_counter() - started) / len(prompts) * 1000, unit="ms")
    )
    for row in measure_recall(env.suite.tasks, tools, offer.servers):
        bounds = "" if row.ci95 is None else f", {row.ci95.low:.3f} to {row.ci95.high:.3f}"
        best = Result(metric=f"best possible recall@{row.k}", value=row.best, unit="share")
        results += [against(f"recall@{row.k}{bounds}", row.recall, "share", best)]
    return results


def play_with_budgets(sandbox: Sandbox, limit: int) -> list[Result]:
    """Episodes that an agent with the gold passes under each budget: it can find and call every tool that it needs."""
    results = []
    for budget in BUDGETS:
        env = WrapperSelection(retrieval=Retrieval(top_k=10, budget=budget)).apply(catalog.load_spec("toolshelf"))
        ended = play(env, sandbox, Plan(agent="adaptive", sandbox=sandbox.name, limit=limit), 4)
        passed = sum(t.score == 1.0 for t in ended)
        longest = max(sum(map(definition_chars, step.observation.tools)) for t in ended for step in t.steps)
        results += [
            Result(metric=f"adaptive, 10 tools by words, budget {budget}", value=passed, unit=f"of {len(ended)}"),
            Result(metric=f"budget {budget}: most characters on offer", value=longest, unit=""),
        ]
        _say(f"budget {budget}: {passed} of {len(ended)}")
    return results


if __name__ == "__main__":
    main()
