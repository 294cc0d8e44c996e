"""Rates at which third-party servers come to a clean world: forked, from the warm pool, started, and bare spawns.

Prints a table; with --json one object. A reset is a server in a sandbox of its own, on a world of its own, with its
tools listed; if its state is files, their digest is compared with that of a started server's world. Baselines, measured
in the same run: the same command outside of any sandbox, spoken to over bare pipes (spawn, initialize, tools/list), and
a server of the MCP SDK spawned per episode by the SDK's own stdio client.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path, PurePosixPath

import reset_baselines as without
from rates import UNIT, WORKERS, measure_rate
from report_table import Result, against, options, show

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
MESSAGES = (
    {"id": 1, "method": "initialize", "params": HELLO},
    {"method": "notifications/initialized"},
    {"id": 2, "method": "tools/list", "params": {}},
)
"""Messages that a bare server gets until its tools are known."""


def main() -> None:
    args = options(__doc__, "a fifth of the repetitions").parse_args()
    sandbox = get_sandbox("bwrap")
    sandbox.check()
    show("resets_third_party", asyncio.run(measure(sandbox, 1 if args.quick else 5)), as_json=args.json)


async def measure(sandbox: Sandbox, scale: int) -> list[Result]:
    """All figures; `scale` multiplies the repetitions."""
    with without.sdk_server() as sdk:
        rate = await measure_rate(lambda: without.sdk_reset(sdk), 16 * scale)
    base = Result(metric="SDK server per episode", value=rate, unit=UNIT)
    results = [base]
    with tempfile.TemporaryDirectory() as folder:
        results += await _measure_server(_sdk_spec(folder), None, sandbox, (16 * scale, 16 * scale, 96 * scale), base)
    for spec, counts in ((clock.ENV, (16, 16, 96)), (git.ENV, (16, 16, 48)), (sequential_thinking.ENV, (32, 16, 32))):
        env = load_env(spec)
        state = env.suite.tasks[0].initial_state
        counts_here = tuple(count * scale for count in counts)
        results += await _measure_server(env.servers[0], state, sandbox, counts_here, base)
    return results


def _sdk_spec(folder: str) -> ServerSpec:
    """The SDK's server of the baseline, with the packages of a server that is installed here."""
    Path(folder, "server.py").write_text(without.SDK_SERVER)
    Path(folder).chmod(0o755)  # a root harness runs servers under an id of their own
    (installed,) = load_env(clock.ENV).servers
    argv = (*installed.argv[:3], str(PROGRAM / "server.py"))
    mounts = (*installed.mounts, Mount(source=Path(folder), target=PROGRAM))
    fork = forkable_script(argv)
    return replace(installed, name="SDK server", argv=argv, mounts=mounts, fork=fork, tools_sha256=None)


async def _measure_server(
    spec: ServerSpec, state: Json, sandbox: Sandbox, counts: tuple[int, ...], sdk: Result
) -> list[Result]:
    """The rates of one server; `counts`: resets bare, started, and from the warm pool."""
    bare_count, started_count, warm_count = counts
    bare = Result(metric="bare spawn", value=await measure_rate(lambda: _bare_reset(spec), bare_count), unit=UNIT)
    started = await measure_rate(lambda: _reset(spec, state, sandbox), started_count)
    clean = await _reset(spec, state, sandbox)
    way = "forked" if spec.fork is not None else f"pool of {WORKERS} warm_pool_size"
    spec = replace(spec, warm_pool_size=WORKERS)
    async with open_warm_sandbox(sandbox) as warm:
        await measure_rate(lambda: _reset(spec, state, warm, clean), WORKERS)  # starts the template, fills the pool
        rate = await measure_rate(lambda: _reset(spec, state, warm, clean), warm_count)
        waits = await _wait_times(spec, state, warm, warm_count // 4)
    name = spec.name
    return [
        against(f"{name}, bare spawn", bare.value, UNIT, sdk),
        against(f"{name}, started in bwrap", started, UNIT, bare),
        against(f"{name}, {way}", rate, UNIT, bare),
        against(f"{name}, {way}", rate, UNIT, sdk),
        Result(metric=f"{name}, {way}, one at a time p50", value=statistics.median(waits), unit="ms"),
    ]


async def _wait_times(spec: ServerSpec, state: Json, sandbox: Sandbox, count: int) -> list[float]:
    """Milliseconds to a ready server, one server after another, with a full pool."""
    waits = []
    for _ in range(count):
        if isinstance(sandbox, WarmSandbox):
            await sandbox.wait_until_full()
        begin = time.perf_counter()
        async with open_session(spec, sandbox, initial_state=state, seed=0) as session:
            await session.update()
            waits.append((time.perf_counter() - begin) * 1e3)
    return waits


async def _reset(spec: ServerSpec, state: Json, sandbox: Sandbox, clean: str | None = None) -> str:
    """The key of a fresh world. Raises RuntimeError if `clean` is given and the key differs."""
    async with open_session(spec, sandbox, initial_state=state, seed=0) as session:
        await session.update()
        if clean is not None and session.world_key != clean:
            raise RuntimeError(f"'{spec.name}': not clean: {session.world_key} instead of {clean}")
        return session.world_key


async def _bare_reset(spec: ServerSpec) -> None:
    """One start until the tools are known, in a session of its own: so are sandboxed servers, and the kernel divides
    cores between sessions."""
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
    for message in MESSAGES:
        process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        while "id" in message and json.loads(await process.stdout.readline()).get("id") != message["id"]:
            pass
    process.kill()
    await process.wait()


if __name__ == "__main__":
    main()
