"""Episodes per second: whole BFCL oracle episodes at several concurrencies, under one sandbox.

Prints a table; with --json one object. "Harness share" is the CPU time of this process as a share of the whole
machine's: let nothing else run. The baseline of the server start is a bare interpreter under the same sandbox, in the
same run.
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from child_processes import measure_descendants
from report_table import Result, options, show

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.mcp_servers.sandbox import Launch, Sandbox, get_sandbox
from gymcp.types import Trajectory


def main() -> None:
    parser = options(__doc__, "96 episodes at each concurrency instead of all")
    parser.add_argument("--env", default="bfcl")
    parser.add_argument("--sandbox", default="bwrap")
    args = parser.parse_args()
    env, sandbox = load_env(load_spec(args.env)), get_sandbox(args.sandbox)
    sandbox.check()
    bare = asyncio.run(_bare_starts(sandbox, 10 if args.quick else 30))
    results = [Result(metric="bare interpreter start p50", value=statistics.median(bare), unit="ms")]
    for concurrency in (1, 16, 64):
        results += _measure(env, sandbox, concurrency, 96 if args.quick else 0, statistics.median(bare))
    show("env_throughput", results, as_json=args.json, title=f"{args.env} under {args.sandbox}")


def _measure(env: LoadedEnv, sandbox: Sandbox, concurrency: int, limit: int, bare_ms: float) -> list[Result]:
    plan = Plan(agent="oracle", sandbox=sandbox.name, limit=limit)
    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    ended: list[Trajectory] = []
    memory: list[float] = []

    def note(rollout: Rollout, last: bool) -> None:
        ended.append(rollout.trajectory)

    async def run() -> None:
        watching = asyncio.create_task(_watch_memory(memory, concurrency))
        await run_jobs(env, sandbox, SCRIPTED["oracle"], jobs, Schedule(concurrency=concurrency), note)
        watching.cancel()

    before, started = _cpu_s(), time.perf_counter()
    asyncio.run(run())
    wall = time.perf_counter() - started
    own, everyone = (after - earlier for after, earlier in zip(_cpu_s(), before, strict=True))
    starts = [trajectory.usage.reset_s * 1e3 for trajectory in ended]
    calls = [result.seconds * 1e3 for t in ended for step in t.steps for result in step.results]
    at = f"@{concurrency}"
    return [
        Result(metric=f"episodes {at}", value=len(ended) / wall, unit="episodes/s"),
        Result(metric=f"seconds for {len(ended)} episodes {at}", value=wall, unit="s"),
        Result(metric=f"scored 1.0 {at}", value=sum(t.score == 1.0 for t in ended) / len(ended), unit="share"),
        *_quantiles(f"reset {at}", starts, bare_ms),
        *_quantiles(f"call {at}", calls),
        Result(metric=f"harness share of CPU {at}", value=own / everyone, unit="share"),
        Result(metric=f"memory per live episode {at}", value=statistics.median(memory or [0.0]), unit="MiB"),
    ]


def _quantiles(metric: str, values: Sequence[float], bare_ms: float | None = None) -> list[Result]:
    results = []
    for name, share in (("p50", 0.50), ("p95", 0.95)):
        value = sorted(values)[int(share * (len(values) - 1))]
        results.append(
            Result(metric=f"{metric} {name}", value=value, unit="ms")
            if bare_ms is None
            else Result(
                metric=f"{metric} {name}",
                value=value,
                unit="ms",
                baseline="bare interpreter start p50",
                baseline_value=bare_ms,
                ratio=value / bare_ms,
            )
        )
    return results


async def _bare_starts(sandbox: Sandbox, count: int) -> list[float]:
    """Milliseconds from the start of an interpreter in the sandbox to its first byte."""
    times = []
    launch = Launch(argv=("python3", "-s", "-S", "-c", "print(1)"))
    for _ in range(count):
        started = time.perf_counter()
        async with sandbox.start(launch) as process:
            await process.stdout.readline()
            times.append((time.perf_counter() - started) * 1e3)
    return times


async def _watch_memory(into: list[float], concurrency: int) -> None:
    """Sample the proportional set size of the servers in MiB, per live episode, twice a second."""
    while True:
        await asyncio.sleep(0.5)
        _, memory_mib = await asyncio.to_thread(measure_descendants)
        into.append(memory_mib / concurrency)


def _cpu_s() -> tuple[float, float]:
    """CPU seconds of this process, and of the whole machine: the descendants' own cannot be told from outside."""
    own = resource.getrusage(resource.RUSAGE_SELF)
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    idle = ticks[3] + ticks[4]
    return own.ru_utime + own.ru_stime, (sum(ticks) - idle) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
