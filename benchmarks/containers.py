"""Cost of a container per episode: from the warm pool, made on demand, and as one hardened ``docker run`` each.

Prints a table; with --json one object. A start takes from the request for a server to its first answer; the server is
the same few lines of Python in all three. The pool's containers are made between the starts that are timed, as they are
beside running episodes; the episodes per second include making and removing every container. The CPU time of a start is
the harness's own, from creation to removal, with Docker's SDK and with the same requests by `http.client`.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import socket
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report_table import Result, against, options, show
from reset_baselines import ECHO_SERVER, docker_run

from gymcp.agents.runner.rollout import Rollout
from gymcp.agents.runner.run import Plan, make_jobs, select_tasks
from gymcp.agents.runner.scheduler import Schedule, run_jobs
from gymcp.agents.strategies.scripted import SCRIPTED
from gymcp.envs.catalog import load_spec
from gymcp.envs.spec import LoadedEnv, load_env
from gymcp.mcp_servers.sandbox import Launch, check_images
from gymcp.mcp_servers.sandbox.docker.backend import Docker
from gymcp.mcp_servers.sandbox.docker.container import container_config, discard, inspect_container, start
from gymcp.mcp_servers.sandbox.docker.engine_api import engine_info, socket_path
from gymcp.mcp_servers.sandbox.docker.pool import Pool
from gymcp.types import Trajectory

BANK = str(Path(__file__).parents[1] / "examples" / "bank.py")


def main() -> None:
    args = options(__doc__, "a third of the starts and episodes").parse_args()
    Docker().check()
    check_images(Docker(), [None])
    starts, episodes = (10, 24) if args.quick else (30, 96)
    results = [*_starts(starts), *_cpu_of_starts(starts), *_throughput(load_env(load_spec(BANK)), episodes)]
    show("containers", results, as_json=args.json)


def _starts(count: int) -> list[Result]:
    run_ms = statistics.median(_docker_run_ms() for _ in range(count)) if shutil.which("docker") else None
    cold, warm = Pool(size=0), Pool(size=1)
    try:
        cold_ms, _ = zip(*(asyncio.run(_start_ms(cold)) for _ in range(count)), strict=True)
        warm_ms, leave_ms = zip(*(asyncio.run(_start_ms(warm)) for _ in range(count + 2)), strict=True)
    finally:
        cold.close()
        warm.close()
    medians = [
        ("start from the warm pool p50", statistics.median(warm_ms[2:])),  # the pool was empty for the first two
        ("start made on demand p50", statistics.median(cold_ms)),
    ]
    results = [_against("hardened docker run p50", run_ms, metric, value) for metric, value in medians]
    if run_ms is not None:
        results.append(Result(metric="start by hardened docker run p50", value=run_ms, unit="ms"))
    return [*results, Result(metric="leave p50", value=statistics.median(leave_ms), unit="ms")]


def _against(baseline: str, baseline_value: float | None, metric: str, value: float) -> Result:
    if baseline_value is None:
        return Result(metric=metric, value=value, unit="ms")
    ratio = value / baseline_value
    return Result(metric=metric, value=value, unit="ms", baseline=baseline, baseline_value=baseline_value, ratio=ratio)


async def _start_ms(pool: Pool) -> tuple[float, float]:
    """Milliseconds to the first answer, and milliseconds to leave."""
    started = time.perf_counter()
    async with Docker(pool=pool).start(Launch(argv=ECHO_SERVER)) as process:
        process.stdin.write(b"x\n")
        await process.stdout.readline()
        answered = time.perf_counter()
        await asyncio.to_thread(pool.wait_until_filled)
        leaving = time.perf_counter()
    return (answered - started) * 1e3, (time.perf_counter() - leaving) * 1e3


def _docker_run_ms() -> float:
    """Milliseconds to the first answer of a container with the same restrictions, made by the command line.

    The command line also removes the container.
    """
    started = time.perf_counter()
    with subprocess.Popen(docker_run("--rm"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"x\n")
        process.stdout.readline()
        elapsed = time.perf_counter() - started
        process.stdin.close()
    return elapsed * 1e3


def _cpu_of_starts(count: int) -> list[Result]:
    engine_info()  # imports the SDK, and asks for the version of the API
    pairs = [(_cpu_ms(_start_by_http_client), _cpu_ms(_start_by_sdk)) for _ in range(count)]
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    baseline = Result(metric="CPU of a start by http.client p50", value=bare, unit="ms")
    return [baseline, against("CPU of a start by Docker's SDK p50", ours, "ms", baseline)]


def _cpu_ms(act: Callable[[], None]) -> float:
    """Milliseconds of CPU time of this thread; the engine works in other processes."""
    started = time.thread_time()
    act()
    return (time.thread_time() - started) * 1e3


def _start_by_sdk() -> None:
    container = start(Launch(argv=ECHO_SERVER), init=False)
    inspect_container(container.id)
    discard(container)


def _start_by_http_client() -> None:
    container = json.loads(_ask("POST", "/containers/create", container_config(Launch(argv=ECHO_SERVER), init=False)))
    here = f"/containers/{container['Id']}"
    streams = _Connection("docker")
    streams.request(
        "POST",
        f"{here}/attach?stream=1&stdin=1&stdout=1&stderr=1",
        headers={"Connection": "Upgrade", "Upgrade": "tcp"},
    )
    with streams.getresponse():
        _ask("POST", f"{here}/start")
        json.loads(_ask("GET", f"{here}/json"))
    streams.close()
    _ask("DELETE", f"{here}?force=1&v=1")


class _Connection(http.client.HTTPConnection):
    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(str(socket_path()))


def _ask(method: str, path: str, content: dict[str, Any] | None = None) -> bytes:
    """The body of the engine's answer, over a connection of its own."""
    connection = _Connection("docker")
    body = None if content is None else json.dumps(content)
    connection.request(method, path, body, {"Content-Type": "application/json"})
    with connection.getresponse() as response:
        answer = response.read()
    connection.close()
    if response.status >= 400:
        raise RuntimeError(f"{method} {path}: {answer.decode()}")
    return answer


def _throughput(env: LoadedEnv, count: int) -> list[Result]:
    results = []
    for concurrency in (1, 8):
        pool = Pool()
        try:
            started = time.perf_counter()
            ended = _play(env, Docker(pool=pool), count, concurrency)
            wall = time.perf_counter() - started
        finally:
            pool.close()
        at = f"@{concurrency}"
        resets = [trajectory.usage.reset_s * 1e3 for trajectory in ended]
        results += [
            Result(metric=f"episodes {at}", value=len(ended) / wall, unit="episodes/s"),
            Result(metric=f"scored 1.0 {at}", value=sum(t.score == 1.0 for t in ended) / len(ended), unit="share"),
            Result(metric=f"reset {at} p50", value=statistics.median(resets), unit="ms"),
        ]
    return results


def _play(env: LoadedEnv, sandbox: Docker, count: int, concurrency: int) -> list[Trajectory]:
    ended: list[Trajectory] = []

    def note(rollout: Rollout, last: bool) -> None:
        ended.append(rollout.trajectory)

    tasks = len(env.suite.tasks)
    plan = Plan(agent="oracle", sandbox=sandbox.name, trials=-(-count // tasks))
    jobs = list(make_jobs(plan, select_tasks(env.suite, plan)))
    asyncio.run(run_jobs(env, sandbox, SCRIPTED["oracle"], jobs, Schedule(concurrency=concurrency), note))
    return ended


if __name__ == "__main__":
    main()
