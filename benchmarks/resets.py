"""Rates of resets to a clean world, of calls and of forks, against the ways without gymcp, in the same run.

Every reset is an episode: a new process in a sandbox of its own, set up, its tools listed, its world compared with the
task's baseline, and nothing of it left at the end. The ways that are compared take turns, round by round; the median
round of each counts. Prints a table; with --json one object.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial

import mcp
import reset_baselines as without
import resets_third_party
from counter import Counter
from rates import UNIT, measure_rate
from report_table import Result, against, all_against, options, show

from gymcp.aio import run_in_own_task
from gymcp.envs.episodes.episode import open_episode
from gymcp.envs.episodes.snapshots import wait_for_all
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.evaluators.graders import final_state_equals
from gymcp.mcp_servers.forkserver.warm_sandbox import open_warm_sandbox
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.sessions.session import ToolSession
from gymcp.types import Action, EpisodeLimits, Suite, Task, ToolCall

SESSIONS = 64
"""Servers that are called at the same time."""
COPIES = 8
"""Episodes that go on from one, or start, at the same time."""
ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"
ADD = Action(tool_calls=(ToolCall(id="1", name="add", arguments={"number": 1}),))


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The sandboxes, environments and baseline server with which all sections measure."""

    sandbox: Sandbox
    warm: Sandbox
    started: LoadedEnv
    forked: LoadedEnv
    sdk: mcp.StdioServerParameters
    rounds: int


def main() -> None:
    args = options(__doc__, "one round instead of five").parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    with without.sdk_server() as sdk:
        results = asyncio.run(native_results(sandbox, sdk, 1 if args.quick else 5))
    results += asyncio.run(resets_third_party.measure(sandbox, 1 if args.quick else 5))
    show("resets", results, as_json=args.json)


async def native_results(sandbox: Sandbox, sdk: mcp.StdioServerParameters, rounds: int) -> list[Result]:
    async with open_warm_sandbox(sandbox) as warm:
        setting = Setting(sandbox=sandbox, warm=warm, started=_env("exec"), forked=_env("fork"), sdk=sdk, rounds=rounds)
        return [*await reset_results(setting), *await call_results(setting), *await fork_results(setting)]


def _env(start: str) -> LoadedEnv:
    server = native_server("counter", Counter, start="fork" if start == "fork" else "exec")
    task = Task(id="count", prompts=("Count.", "On."), initial_state={"total": 1}, limits=EpisodeLimits(steps=10**6))
    suite = Suite(name="counter", version="1", tasks=(task,))
    return load_env(EnvSpec(name=f"counter-{start}", servers=(server,), suite=suite, grade=final_state_equals()))


# ------------------------------------------------------------------------------------------------------------- resets


async def reset_results(setting: Setting) -> list[Result]:
    """Resets a second."""
    for env in (setting.started, setting.forked):
        await _reset(env, setting.warm)  # records its baseline, starts its template
    ways: dict[str, tuple[Callable[[], Awaitable[None]], int]] = {
        "SDK server per episode": (lambda: without.sdk_reset(setting.sdk), 8),
        "bare interpreter in bwrap": (lambda: without.bare_start(setting.sandbox), 96),
        "native, started": (lambda: _reset(setting.started, setting.sandbox), 96),
        "native, forked": (lambda: _reset(setting.forked, setting.warm), 192),
    }
    async with contextlib.AsyncExitStack() as stack:
        if without.docker_is_there():
            free = await stack.enter_async_context(without.containers(4))
            ways["hardened docker run per episode"] = (without.docker_run_reset, 8)
            ways["docker restart"] = (lambda: without.docker_restart(free), 8)
        rates = await _in_turns(setting.rounds, {name: partial(measure_rate, *way) for name, way in ways.items()})
    medians = {name: statistics.median(rounds) for name, rounds in rates.items()}
    results = all_against(medians, UNIT, "SDK server per episode")
    for name in ("native, started", "native, forked"):
        fastest = Result(metric=f"{name}, fastest round", value=max(rates[name]), unit=UNIT)
        results.append(fastest)
        for other in ("hardened docker run per episode", "docker restart"):
            if other in medians:
                baseline = Result(metric=other, value=medians[other], unit=UNIT)
                results.append(against(name, medians[name], UNIT, baseline))
    return results


async def _reset(env: LoadedEnv, sandbox: Sandbox) -> None:
    async with open_episode(env, sandbox, env.suite.tasks[0], seed=0):
        pass


async def _in_turns(rounds: int, ways: Mapping[str, Callable[[], Awaitable[float]]]) -> dict[str, list[float]]:
    values: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, measure in ways.items():
            values[name].append(await measure())
            print(f"{name}: {values[name][-1]:.1f}", file=sys.stderr, flush=True)
    return values


# -------------------------------------------------------------------------------------------------------------- calls

Call = Callable[[], Awaitable[object]]
Caller = contextlib.AbstractAsyncContextManager[Call]


async def call_results(setting: Setting) -> list[Result]:
    """Calls a second over `SESSIONS` servers that are all up before the clock starts."""
    ways: dict[str, tuple[Callable[[], Caller], int]] = {
        "SDK server, SDK client": (lambda: _sdk_caller(setting.sdk), 5),
        "bare pipes": (_pipe_caller, 60),
        "native, result with its state's digest": (lambda: _session_caller(setting), 25),
        "native, steps of episodes, every new state recorded": (lambda: _step_caller(setting), 15),
    }
    rates = {name: await _calls(*way) for name, way in ways.items()}
    return all_against(rates, f"calls/s @{SESSIONS}", "SDK server, SDK client")


async def _calls(open_caller: Callable[[], Caller], each: int) -> float:
    up = asyncio.Barrier(SESSIONS + 1)

    async def work() -> None:
        async with open_caller() as call:
            await call()
            await up.wait()
            for _ in range(each):
                await call()
            await up.wait()

    workers = [asyncio.create_task(work()) for _ in range(SESSIONS)]
    await up.wait()
    begin = time.perf_counter()
    await up.wait()
    spent = time.perf_counter() - begin
    await asyncio.gather(*workers)
    return SESSIONS * each / spent


@contextlib.asynccontextmanager
async def _session_caller(setting: Setting) -> AsyncIterator[Call]:
    (server,) = setting.forked.servers
    async with open_session(server, setting.warm, initial_state={}, seed=0) as session:
        yield lambda: _call_and_digest(session)


async def _call_and_digest(session: ToolSession) -> tuple[str, str]:
    result = await session.call_tool(ToolCall(id="1", name="add", arguments={}), {"number": 1}, timeout_s=60)
    return result.content, session.world_key


@contextlib.asynccontextmanager
async def _step_caller(setting: Setting) -> AsyncIterator[Call]:
    async with open_episode(setting.forked, setting.warm, setting.forked.suite.tasks[0], seed=0) as episode:
        yield lambda: episode.step(ADD)


@contextlib.asynccontextmanager
async def _sdk_caller(server: mcp.StdioServerParameters) -> AsyncIterator[Call]:
    async with mcp.Client(server) as client:
        yield lambda: client.call_tool("add", {"number": 1})


@contextlib.asynccontextmanager
async def _pipe_caller() -> AsyncIterator[Call]:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", ECHO, stdin=pipe, stdout=pipe)
    assert process.stdin is not None
    assert process.stdout is not None
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "add"}}).encode() + b"\n"

    async def call() -> object:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line)
        return json.loads(await process.stdout.readline())

    yield call
    process.stdin.close()
    await process.wait()


# -------------------------------------------------------------------------------------------------------------- forks


async def fork_results(setting: Setting) -> list[Result]:
    """Milliseconds until `COPIES` episodes that go on from a live one are ready to step."""
    (task,) = setting.forked.suite.tasks
    async with open_episode(setting.forked, setting.warm, task, seed=0) as episode:
        for _ in range(20):
            await episode.step(ADD)

        async def fork() -> float:
            begin = time.perf_counter()
            async with episode.fork(COPIES) as copies:
                spent = time.perf_counter() - begin
                assert {copy.world_key for copy in copies} == {episode.world_key}
            return spent * 1e3

        async def fresh() -> float:
            begin = time.perf_counter()
            async with contextlib.AsyncExitStack() as stack:
                episodes = [open_episode(setting.forked, setting.warm, task, seed=0) for _ in range(COPIES)]
                await wait_for_all([stack.enter_async_context(run_in_own_task(episode)) for episode in episodes])
                return (time.perf_counter() - begin) * 1e3

        times = await _in_turns(4 * setting.rounds, {"fresh": fresh, "fork": fork})
    metric = f"{COPIES} fresh episodes, forked from their template p50"
    anew = Result(metric=metric, value=statistics.median(times["fresh"]), unit="ms")
    return [
        anew,
        against(f"fork({COPIES}) of a live episode p50", statistics.median(times["fork"]), "ms", anew),
        against(f"fork({COPIES}) of a live episode, fastest", min(times["fork"]), "ms", anew),
    ]


if __name__ == "__main__":
    main()
