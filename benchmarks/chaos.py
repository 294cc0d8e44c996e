"""Thousands of episodes, every tenth with a server that breaks: each must end as planned, and leave nothing behind.

They run through the real scheduler and store, without retries (``max_attempts=1``), since a planned fault returns with
every attempt. Each start path runs in a process of its own, which is examined while it lives and after its end. Exit
code 1 if an episode did not end as planned, something is left, or memory grows.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

from faults import FINE, PATIENCE_S, SANDBOX, End, StartPath, difference, ends, environment
from leftovers import count_resources, find_marked, how_many_more
from report_table import Result, options, show

from gymcp.agents.runner.run import Plan, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.process_owner import owner
from gymcp.store import TrajectoryStore
from gymcp.types import Trajectory

TOKEN = "GYMCP_CHAOS"
"""Environment variable of every server, and of all processes below it, that marks this campaign."""
HEALTHY_PER_FAULT = 9
QUICK_EPISODES = 100
CONCURRENCY = 16
MAX_GROWTH = 0.05
"""Share by which the memory of the harness may grow from the middle to the end."""
MIN_EPISODES_FOR_GROWTH = 2000
"""Number of episodes from which on growth of memory is tested; fewer say nothing."""
MAX_PROBLEMS_SHOWN, MAX_PROBLEM_CHARS = 10, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Results of one start path."""

    results: list[Result]
    wrong: list[str]
    """A description of everything that is not as it must be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """The record of an episode that has ended: small, since the memory of this process is measured."""

    outcome: str
    was_to_break: bool
    wrong: str | None
    resident_bytes: int
    """Memory of the harness when the episode had ended."""


def main() -> None:
    parser = options(__doc__, f"{QUICK_EPISODES} episodes")
    parser.add_argument("--episodes", type=int, default=5000, help="of each start path, rounded up to whole rounds")
    parser.add_argument("--start-path", action="append", choices=get_args(StartPath), help="default: files and forked")
    parser.add_argument("--concurrency", type=int, default=CONCURRENCY)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    episodes = QUICK_EPISODES if args.quick else args.episodes
    if args.alone:
        print(json.dumps(_campaign(args.start_path[0], episodes, args.concurrency, args.alone)))
        return
    results: list[Result] = []
    wrong: list[str] = []
    for start_path in args.start_path or ("files", "forked"):
        findings = run_in_own_process(start_path, episodes, args.concurrency)
        results += findings.results
        wrong += findings.wrong
    for line in wrong:
        print(line, file=sys.stderr)
    show("chaos", results, as_json=args.json)
    sys.exit(bool(wrong))


def run_in_own_process(start_path: StartPath, episodes: int, concurrency: int = CONCURRENCY) -> Findings:
    """The findings of the campaign, and everything that is left after its process has ended."""
    token = f"{start_path}-{os.getpid()}-{time.time_ns()}"
    command = [sys.executable, __file__, "--alone", token, "--start-path", start_path, "--episodes", str(episodes)]
    with tempfile.TemporaryDirectory(prefix="gymcp-chaos-") as home:
        done = subprocess.run(
            [*command, "--concurrency", str(concurrency)],
            stdout=subprocess.PIPE,
            env={**os.environ, "GYMCP_HOME": home},
            check=True,
        )
    output = json.loads(done.stdout)
    left = [f"process {pid}" for pid in find_by_environment(TOKEN, token)] + find_marked(
        output["owner"], SANDBOX[start_path]
    )
    return Findings(
        results=[
            *(Result(**row) for row in output["results"]),
            _row(start_path, "left after the end", len(left), "things"),
        ],
        wrong=[*output["wrong"], *(f"{start_path}: left after the end: {thing}" for thing in left)],
    )


def _campaign(start_path: StartPath, episodes: int, concurrency: int, token: str) -> dict[str, Any]:
    env, planned = _environment(start_path, episodes, token)
    schedule = Schedule(concurrency=concurrency, max_attempts=1, harness_timeout_s=300.0)
    every_fault = replace(env, suite=replace(env.suite, tasks=tuple(t for t in env.suite.tasks if t.id in planned)))
    _play(every_fault, start_path, schedule, 1, planned, [])  # makes what is made once, before counting begins
    trials = -(-episodes // len(env.suite.tasks))
    before, started = count_resources(SANDBOX[start_path]), time.perf_counter()
    ended: list[Ended] = []
    _play(env, start_path, schedule, trials, planned, ended)
    seconds = time.perf_counter() - started
    after = count_resources(SANDBOX[start_path])
    wrong = [end.wrong for end in ended if end.wrong is not None]
    sizes = [end.resident_bytes for end in ended]
    middle, last = (at_rest(sizes, place, len(env.suite.tasks)) for place in (0.5, 1.0))
    problems = [f"{start_path}: {text[:MAX_PROBLEM_CHARS]}" for text in wrong[:MAX_PROBLEMS_SHOWN]]
    if len(ended) != trials * len(env.suite.tasks):
        problems.append(f"{start_path}: {len(ended)} episodes ended")
    if len(sizes) >= MIN_EPISODES_FOR_GROWTH and last > middle * (1 + MAX_GROWTH):
        problems.append(f"{start_path}: memory grew from {middle} to {last} bytes")
    more = how_many_more(before, after)
    grown = [name for name in before if more[name]]
    problems += [f"{start_path}: {name}: {before[name]} before, {after[name]} after" for name in grown]
    broken = sum(end.was_to_break for end in ended)
    outcomes = Counter(end.outcome for end in ended)
    rows = [
        _row(start_path, "episodes", len(ended), f"of which {broken} with one of {len(planned)} faults"),
        _row(start_path, "ended otherwise than planned", len(wrong), "episodes"),
        *(_row(start_path, f"ended as {name}", count, "episodes") for name, count in sorted(outcomes.items())),
        _row(start_path, "rate", len(ended) / seconds, "episodes/s"),
        *(_row(start_path, f"{name} more than before", more[name], name) for name in before),
        Result(
            metric=f"{start_path}: memory of the harness at the end, at rest",
            value=last / 1e6,
            unit="MB",
            baseline="in the middle",
            baseline_value=middle / 1e6,
            ratio=last / middle,
        ),
    ]
    return {"owner": owner(), "wrong": problems, "results": [asdict(row) for row in rows]}


def _environment(start_path: StartPath, episodes: int, token: str) -> tuple[LoadedEnv, dict[str, End]]:
    """An environment with as many faults as a tenth of the episodes can have, and the end that each must have."""
    possible = ends(start_path)
    count = max(1, min(len(possible), episodes // (1 + HEALTHY_PER_FAULT)))
    names = list(possible)
    chosen = [names[i * len(names) // count] for i in range(count)]
    env = environment(
        start_path, chosen, healthy=HEALTHY_PER_FAULT, start_timeout_s=_start_timeout_s(start_path, episodes)
    )
    return with_token(env, token), {name: possible[name] for name in chosen}


def _start_timeout_s(start_path: StartPath, episodes: int) -> float:
    """Seconds that a start may take; only forked servers have no fault that waits for this limit."""
    if start_path == "forked":
        return PATIENCE_S
    return 20.0 if episodes < MIN_EPISODES_FOR_GROWTH else 30.0


def with_token(env: LoadedEnv, token: str) -> LoadedEnv:
    """The environment with a mark in its servers; `find_by_environment(TOKEN, token)` finds them and their children."""
    servers = tuple(replace(server, env={**server.env, TOKEN: token}) for server in env.servers)
    return replace(env, servers=servers)


def _play(
    env: LoadedEnv,
    start_path: StartPath,
    schedule: Schedule,
    trials: int,
    planned: Mapping[str, End],
    ended: list[Ended],
) -> None:
    """Play the tasks, and add each episode to `ended` as it ends."""
    total = trials * len(env.suite.tasks)

    def note(trajectory: Trajectory) -> None:
        was_to_break = trajectory.task in planned
        ended.append(
            Ended(
                outcome=trajectory.outcome,
                was_to_break=was_to_break,
                wrong=difference(trajectory, planned.get(trajectory.task, FINE), trajectory.task),
                resident_bytes=_resident_bytes(),
            )
        )
        if len(ended) % 500 == 0:
            size = ended[-1].resident_bytes / 1e6
            print(f"{start_path}: {len(ended)}/{total}, {size:.1f} MB", file=sys.stderr, flush=True)

    plan = Plan(agent="oracle", sandbox=SANDBOX[start_path], trials=trials)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gymcp-chaos-"))
        store = stack.enter_context(TrajectoryStore.open(Path(folder), write=True))
        run_plan(env, get_sandbox(SANDBOX[start_path]), plan, store, schedule, on_episode=note)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at_rest(sizes: list[int], place: float, round_size: int) -> int:
    """The lower quartile of the sizes of one round of episodes, the last that ended before `place` (0 to 1) of the run.

    Whole rounds have the same faults. The quartile leaves out lines of 100 MB that are just being read: on a busy
    machine that takes a while, and up to twice the longest line is held meanwhile. A leak is in every episode's size.
    """
    end = max(1, round(len(sizes) * place))
    part = sorted(sizes[max(0, end - round_size) : end])
    return part[len(part) // 4]


def _row(start_path: StartPath, metric: str, value: float, unit: str) -> Result:
    return Result(metric=f"{start_path}: {metric}", value=value, unit=unit)


if __name__ == "__main__":
    main()
