"""Thousands of episodes of which every tenth has a server that breaks: does each end as it must, and is nothing left?

Through the real scheduler and store, with its retries switched off (``max_attempts=1``), since a planned fault comes
back with every attempt. Each wall is run in a process of its own, which is looked at while it lives and after its end.
Exit code 1 where an episode ended otherwise than was planned for it, something is left, or memory grows.
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

from faults import FINE, PATIENCE_S, SANDBOX, End, Wall, difference, ends, environment
from report_table import Result, options, show

from gymcp.agents.runner.run import Plan, run_plan
from gymcp.agents.runner.scheduler import Schedule
from gymcp.envs.spec import LoadedEnv
from gymcp.mcp_servers.cleanup import cgroup_mountpoints
from gymcp.mcp_servers.sandbox import get_sandbox
from gymcp.mcp_servers.sandbox.docker.engine_api import OWNER_LABEL, find_containers
from gymcp.mcp_servers.sandbox.proctree import find_by_environment
from gymcp.process_owner import OWNER_VARIABLE, owner
from gymcp.scratch import runtime_folder, scratch_folder
from gymcp.store import TrajectoryStore
from gymcp.types import Trajectory

TOKEN = "GYMCP_CHAOS"
"""In the environment of every server, its children and theirs."""
HEALTHY = 9
"""For each that breaks."""
MOST_GROWTH = 0.05
ENOUGH = 2000
"""Episodes, fewer of which say nothing about growth."""
SHOWN, SHOWN_CHARS = 10, 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Behind one wall."""

    results: list[Result]
    wrong: list[str]
    """What is not as it must be, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is kept of an episode: little, since the memory of this process is measured."""

    outcome: str
    was_to_break: bool
    wrong: str | None
    resident_bytes: int
    """Of the harness, when the episode had ended."""


def main() -> None:
    parser = options(__doc__, "200 episodes")
    parser.add_argument("--episodes", type=int, default=5000, help="behind each wall, rounded up to whole rounds")
    parser.add_argument("--wall", action="append", choices=get_args(Wall), help="default: files and forked")
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--alone", help=argparse.SUPPRESS)
    args = parser.parse_args()
    episodes = 200 if args.quick else args.episodes
    if args.alone:
        print(json.dumps(_campaign(args.wall[0], episodes, args.concurrency, args.alone)))
        return
    results: list[Result] = []
    wrong: list[str] = []
    for wall in args.wall or ("files", "forked"):
        found = _in_own_process(wall, episodes, args.concurrency)
        results += found.results
        wrong += found.wrong
    for line in wrong:
        print(line, file=sys.stderr)
    show("chaos", results, as_json=args.json)
    sys.exit(bool(wrong))


def _in_own_process(wall: Wall, episodes: int, concurrency: int) -> Found:
    """What the campaign found, and what is left after its process has ended."""
    token = f"{wall}-{os.getpid()}-{time.time_ns()}"
    command = [sys.executable, __file__, "--alone", token, "--wall", wall, "--episodes", str(episodes)]
    with tempfile.TemporaryDirectory(prefix="gymcp-chaos-") as home:
        done = subprocess.run(
            [*command, "--concurrency", str(concurrency)],
            stdout=subprocess.PIPE,
            env={**os.environ, "GYMCP_HOME": home},
            check=True,
        )
    said = json.loads(done.stdout)
    left = [f"process {pid}" for pid in find_by_environment(TOKEN, token)] + marked(said["owner"], wall)
    return Found(
        results=[*(Result(**row) for row in said["results"]), _row(wall, "left after the end", len(left), "things")],
        wrong=[*said["wrong"], *(f"{wall}: left after the end: {thing}" for thing in left)],
    )


def marked(owner_tag: str, wall: Wall) -> list[str]:
    """What bears the mark of an owner."""
    folder = runtime_folder() / owner_tag
    containers = find_containers(f"{OWNER_LABEL}={owner_tag}") if wall == "docker" else []
    return [
        *(f"container {row['Id']}" for row in containers),
        *(f"process {pid}" for pid in find_by_environment(OWNER_VARIABLE, owner_tag)),
        *(f"folder {folder}" for _ in range(folder.exists())),
        *(f"cgroup {path}" for path in _cgroups(owner_tag)),
    ]


def _campaign(wall: Wall, episodes: int, concurrency: int, token: str) -> dict[str, Any]:
    env, planned = _environment(wall, episodes, token)
    schedule = Schedule(concurrency=concurrency, max_attempts=1, episode_timeout_s=300.0)
    every_fault = replace(env, suite=replace(env.suite, tasks=tuple(t for t in env.suite.tasks if t.id in planned)))
    _play(every_fault, wall, schedule, 1, planned, [])  # what is made once and kept is there before counting begins
    trials = -(-episodes // len(env.suite.tasks))
    before, started = _standing(wall), time.perf_counter()
    ended: list[Ended] = []
    _play(env, wall, schedule, trials, planned, ended)
    seconds = time.perf_counter() - started
    after = _standing(wall)
    wrong = [end.wrong for end in ended if end.wrong is not None]
    sizes = [end.resident_bytes for end in ended]
    middle, last = (at_rest(sizes, place, len(env.suite.tasks)) for place in (0.5, 1.0))
    problems = [f"{wall}: {text[:SHOWN_CHARS]}" for text in wrong[:SHOWN]]
    if len(ended) != trials * len(env.suite.tasks):
        problems.append(f"{wall}: {len(ended)} episodes ended")
    if len(sizes) >= ENOUGH and last > middle * (1 + MOST_GROWTH):
        problems.append(f"{wall}: memory grew from {middle} to {last} bytes")
    grown = [name for name in before if _more(name, before, after)]
    problems += [f"{wall}: {name}: {before[name]} before, {after[name]} after" for name in grown]
    broken = sum(end.was_to_break for end in ended)
    outcomes = Counter(end.outcome for end in ended)
    rows = [
        _row(wall, "episodes", len(ended), f"of which {broken} with one of {len(planned)} faults"),
        _row(wall, "ended otherwise than planned", len(wrong), "episodes"),
        *(_row(wall, f"ended as {name}", count, "episodes") for name, count in sorted(outcomes.items())),
        _row(wall, "rate", len(ended) / seconds, "episodes/s"),
        *(_row(wall, f"{name} more than before", _more(name, before, after), name) for name in before),
        Result(
            metric=f"{wall}: memory of the harness at the end, at rest",
            value=last / 1e6,
            unit="MB",
            baseline="in the middle",
            baseline_value=middle / 1e6,
            ratio=last / middle,
        ),
    ]
    return {"owner": owner(), "wrong": problems, "results": [asdict(row) for row in rows]}


def _environment(wall: Wall, episodes: int, token: str) -> tuple[LoadedEnv, dict[str, End]]:
    """As many faults as a tenth of the episodes can have, and how each must end."""
    possible = ends(wall)
    count = max(1, min(len(possible), episodes // (1 + HEALTHY)))
    names = list(possible)
    chosen = [names[i * len(names) // count] for i in range(count)]
    env = environment(wall, chosen, healthy=HEALTHY, start_timeout_s=_start_timeout_s(wall, episodes))
    return with_token(env, token), {name: possible[name] for name in chosen}


def _start_timeout_s(wall: Wall, episodes: int) -> float:
    """Only a forked server has no fault that waits for it."""
    if wall == "forked":
        return PATIENCE_S
    return 20.0 if episodes < ENOUGH else 30.0


def with_token(env: LoadedEnv, token: str) -> LoadedEnv:
    """Its servers, and whatever they start, can be found by `find_by_environment(TOKEN, token)`."""
    servers = tuple(replace(server, env={**server.env, TOKEN: token}) for server in env.servers)
    return replace(env, servers=servers)


def _play(
    env: LoadedEnv, wall: Wall, schedule: Schedule, trials: int, planned: Mapping[str, End], ended: list[Ended]
) -> None:
    """Adds each episode as it ends."""
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
            print(f"{wall}: {len(ended)}/{total}, {size:.1f} MB", file=sys.stderr, flush=True)

    plan = Plan(agent="oracle", sandbox=SANDBOX[wall], trials=trials)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="gymcp-chaos-"))
        store = stack.enter_context(TrajectoryStore.open(Path(folder), write=True))
        run_plan(env, get_sandbox(SANDBOX[wall]), plan, store, schedule, on_episode=note)


def _standing(wall: Wall) -> dict[str, int]:
    """How much of everything there is while no episode runs. Docker keeps spares for a while: those go at the end."""
    if wall == "docker":
        return {"folders": len(list(scratch_folder().iterdir()))}
    ours = find_by_environment(OWNER_VARIABLE, owner())  # what lives as long as the harness, such as its mounter
    return {
        "processes": len(ours),
        "descriptors": len(list(Path("/proc/self/fd").iterdir())),
        "mounts": sum(len(mounts(Path(f"/proc/{pid}/mountinfo").read_text())) for pid in ("self", *ours)),
        "cgroups": len(_cgroups(owner())),
        "folders": len(list(scratch_folder().iterdir())),
    }


def mounts(mountinfo: str) -> list[str]:
    """Mount points of this machine, without those that come and go with the containers of other programs."""
    points = [line.split()[4] for line in mountinfo.splitlines()]
    return [point for point in points if not {"docker", "containers", "containerd"} & set(Path(point).parts)]


def _more(name: str, before: dict[str, int], after: dict[str, int]) -> int:
    return max(0, after[name] - before[name])


def _cgroups(owner_tag: str) -> list[Path]:
    return [
        Path(folder, child)
        for mountpoint in cgroup_mountpoints()
        for folder, children, _ in os.walk(mountpoint)
        for child in children
        if child.startswith(f"gymcp-{owner_tag}-") and not child.endswith("-harness")
    ]


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at_rest(sizes: list[int], place: float, round_size: int) -> int:
    """Of as many episodes as a round has, those that ended last before the place: what a quarter of them had at most.

    Whole rounds have the same faults, and the quarter leaves out lines of 100 MB that are just being read: on a busy
    machine that takes a while, and up to twice the longest line is held meanwhile. What stays is in every episode's.
    """
    end = max(1, round(len(sizes) * place))
    part = sorted(sizes[max(0, end - round_size) : end])
    return part[len(part) // 4]


def _row(wall: Wall, metric: str, value: float, unit: str) -> Result:
    return Result(metric=f"{wall}: {metric}", value=value, unit=unit)


if __name__ == "__main__":
    main()
