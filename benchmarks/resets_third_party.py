"""How fast third-party servers come to a clean world: forked, from spares, started; against bare spawns in one run.

Prints a table; with --json one object. A reset is a server behind a wall of its own, on a world of its own, with its
tools listed and, where its state is files, their digest compared with the one that a started server's world had.
Baselines: the same command outside of any sandbox, spoken to over bare pipes (spawn, initialize, tools/list), and a
server of the MCP SDK spawned per episode by the SDK's own stdio client.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path, PurePosixPath

import reset_baselines as without
from report_table import Result, options, show

from gymcp.envs.catalog import git, sequential_thinking
from gymcp.envs.catalog import time as clock
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.forkserver.python_scripts import forkable_script
from gymcp.mcp_servers.forkserver.warm_sandbox import WarmSandbox, open_warm_sandbox
from gymcp.mcp_servers.sandbox import Mount, Sandbox, get_sandbox
from gymcp.mcp_servers.sessions.connect import open_session
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json

PROGRAM = PurePosixPath("/srv/benchmark")
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "bare", "version": "1"}}
ASKED = (
    {"id": 1, "method": "initialize", "params": HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)


AT_ONCE = 16


def main() -> None:
    args = options(__doc__, "a fifth of the repetitions").parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    show("resets_third_party", asyncio.run(measure(sandbox, 1 if args.quick else 5)), as_json=args.json)


async def measure(sandbox: Sandbox, scale: int) -> list[Result]:
    """All figures, `scale` times as many repetitions as the least."""
    with without.sdk_server() as sdk:
        base = await _rate(lambda: without.sdk_reset(sdk), 16 * scale)
    results = [_result("SDK server per episode", base)]
    with tempfile.TemporaryDirectory() as folder:
        results += await _of_server(_sdk_spec(folder), None, sandbox, (16 * scale, 16 * scale, 96 * scale), base)
    for spec, counts in ((clock.ENV, (16, 16, 96)), (git.ENV, (16, 16, 48)), (sequential_thinking.ENV, (32, 16, 32))):
        env = load_env(spec)
        state = env.suite.tasks[0].initial_state
        results += await _of_server(env.servers[0], state, sandbox, tuple(count * scale for count in counts), base)
    return results


def _sdk_spec(folder: str) -> ServerSpec:
    """The SDK's server of the baseline, with the packages of a server that is installed here."""
    Path(folder, "server.py").write_text(without.SDK_SERVER)
    (installed,) = load_env(clock.ENV).servers
    argv = (*installed.argv[:3], str(PROGRAM / "server.py"))
    mounts = (*installed.mounts, Mount(source=Path(folder), target=PROGRAM))
    fork = forkable_script(argv)
    return replace(installed, name="SDK server", argv=argv, mounts=mounts, fork=fork, tools_sha256=None)


async def _of_server(
    spec: ServerSpec, state: Json, sandbox: Sandbox, counts: tuple[int, ...], sdk: float
) -> list[Result]:
    bare_count, started_count, warm_count = counts
    bare = await _rate(lambda: _bare_reset(spec), bare_count)
    started = await _rate(lambda: _reset(spec, state, sandbox), started_count)
    clean = await _reset(spec, state, sandbox)
    way = "forked" if spec.fork is not None else f"pool of {AT_ONCE} spares"
    spec = replace(spec, warm_pool_size=AT_ONCE)
    async with open_warm_sandbox(sandbox) as warm:
        await _rate(lambda: _reset(spec, state, warm, clean), AT_ONCE)  # template and spares are there
        rate = await _rate(lambda: _reset(spec, state, warm, clean), warm_count)
        waits = await _waits(spec, state, warm, warm_count // 4)
    name = spec.name
    return [
        _result(f"{name}, bare spawn", bare, "SDK server per episode", sdk),
        _result(f"{name}, started in bwrap", started, "bare spawn", bare),
        _result(f"{name}, {way}", rate, "bare spawn", bare),
        _result(f"{name}, {way}", rate, "SDK server per episode", sdk),
        Result(metric=f"{name}, {way}, one at a time p50", value=statistics.median(waits), unit="ms"),
    ]


def _result(metric: str, rate: float, baseline: str | None = None, base: float | None = None) -> Result:
    ratio = rate / base if base is not None else None
    unit = f"resets/s @{AT_ONCE}"
    return Result(metric=metric, value=rate, unit=unit, baseline=baseline, baseline_value=base, ratio=ratio)


async def _rate(act: Callable[[], Awaitable[object]], count: int) -> float:
    """How often a second `AT_ONCE` workers do it."""
    left = iter(range(count))

    async def work() -> None:
        for _ in left:
            await act()

    begin = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
    return count / (time.perf_counter() - begin)


async def _waits(spec: ServerSpec, state: Json, sandbox: Sandbox, count: int) -> list[float]:
    """Milliseconds to a ready server, one after another, while spares are ready."""
    found = []
    for _ in range(count):
        if isinstance(sandbox, WarmSandbox):
            await sandbox.wait_until_full()
        begin = time.perf_counter()
        async with open_session(spec, sandbox, initial_state=state, seed=0) as session:
            await session.update()
            found.append((time.perf_counter() - begin) * 1e3)
    return found


async def _reset(spec: ServerSpec, state: Json, sandbox: Sandbox, clean: str | None = None) -> str:
    """The key of a fresh world. Raises RuntimeError where it is another than `clean`."""
    async with open_session(spec, sandbox, initial_state=state, seed=0) as session:
        await session.update()
        if clean is not None and session.world_key != clean:
            raise RuntimeError(f"'{spec.name}': not clean: {session.world_key} instead of {clean}")
        return session.world_key


async def _bare_reset(spec: ServerSpec) -> None:
    """In a session of its own, as sandboxed ones are: the kernel shares cores out by sessions."""
    argv = list(spec.argv)
    for mount in spec.mounts:
        argv = [word.replace(str(mount.target), str(mount.source)) for word in argv]
    pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    env = {"PATH": "/usr/bin:/bin", **spec.env}
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=pipe, stdout=pipe, stderr=null, env=env, cwd="/tmp", start_new_session=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    for message in ASKED:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        while "id" in message and json.loads(await process.stdout.readline()).get("id") != message["id"]:
            pass
    process.kill()
    await process.wait()


if __name__ == "__main__":
    main()
