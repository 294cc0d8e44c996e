"""Random trees of every catalog environment: each branch's world is compared with that of a replay, step by step.

An agent plays the gold with random calls in between; a controller lets it branch at random, and undoes some steps. Then
the recorded calls of every branch are played on a fresh world, whose digest and anchor must be the recorded ones after
and before every step. A part of the trees is played again by a process that is killed in the middle of a tree
(SIGKILL), and resumed: they must be the same trees. Nothing of either may be left behind. Trees are shared evenly, but
environments whose servers are not forked get fewer, because each of their worlds takes a second or more.
Exit code 1 if anything differs, has no score, or is left.
"""

from __future__ import annotations

import asyncio
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import random_tree_play
from leftovers import count_resources, find_marked, how_many_more
from random_tree_play import Lots, play_trees
from report_table import Result, options, show
from tree_play import Tree, read_trees, replay

from gymcp.agents.runner.run import Plan, select_tasks
from gymcp.envs import load_env, load_spec
from gymcp.envs.catalog import names
from gymcp.envs.spec import LoadedEnv
from gymcp.errors import GymcpError
from gymcp.mcp_servers.cleanup import find_leftovers, remove_leftovers
from gymcp.store import TrajectoryStore
from gymcp.types import Step, Trajectory

SLOW_TREES = 12
"""Trees of an environment whose servers are started for each episode."""
KILLED_SHARE = 5
"""One in so many trees is played a second time, killed and resumed."""
REPLAYS = 2
"""Replays at the same time."""
SHOWN = 3
"""Problems of each kind that are shown in full."""


@dataclass(slots=True)
class Findings:
    """Figures of one environment."""

    trees: int = 0
    branches: int = 0
    steps: int = 0
    """Steps of branches that were compared."""
    equal: int = 0
    """Branches that are equal to their replay at every step."""
    resumed: int = 0
    """Trees that were played again, killed and resumed."""
    same: int = 0
    """The resumed trees that are the same."""
    left: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    parser = options(__doc__, "3 trees of each environment")
    parser.add_argument("--trees", type=int, default=1000, help="in all environments together")
    parser.add_argument("--only", nargs="+", choices=names(), default=names(), help="environments")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    envs, left_out = load_all(args.only)
    shares = dict.fromkeys(envs, 3) if args.quick else share_trees(envs, args.trees)
    results, wrong, total = [], [f"{name}: left out: {why}" for name, why in left_out.items()], Findings()
    for number, (name, env) in enumerate(envs.items(), 1):
        began = time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="gymcp-trees-") as folder:
            found = examine(env, name, shares[name], args.seed, Path(folder))
        seconds = time.perf_counter() - began
        print(f"{number}/{len(envs)} {name}: {found} in {seconds:.0f} s", file=sys.stderr, flush=True)
        results.append(describe(name, found))
        wrong += [f"{name}: {text}" for text in (*found.wrong, *found.left)]
        for key in ("trees", "branches", "steps", "equal", "resumed", "same"):
            setattr(total, key, getattr(total, key) + getattr(found, key))
        total.left += found.left
    results += [
        describe("all", total),
        Result(metric="all: killed and resumed trees that are the same", value=total.same, unit=f"of {total.resumed}"),
        Result(metric="all: left behind", value=len(total.left), unit="things"),
        Result(metric="environments left out", value=len(left_out), unit=", ".join(left_out)),
    ]
    for line in wrong:
        print(line, file=sys.stderr)
    show("random_trees", results, as_json=args.json, title="random trees")
    sys.exit(len(wrong) > len(left_out))


def describe(name: str, found: Findings) -> Result:
    """The row of one environment, or of all."""
    unit = f"of {found.branches}, {found.steps} steps, {found.trees} trees"
    return Result(metric=f"{name}: branches equal to their replay", value=found.equal, unit=unit)


def load_all(wanted: Sequence[str]) -> tuple[dict[str, LoadedEnv], dict[str, str]]:
    """The environments that this machine has what it takes for, and the reason for each that is left out."""
    envs, left_out = {}, {}
    for name in wanted:
        try:
            envs[name] = load_env(load_spec(name))
        except GymcpError as error:
            left_out[name] = str(error)
    return envs, left_out


def share_trees(envs: dict[str, LoadedEnv], trees: int) -> dict[str, int]:
    """Trees of each environment."""
    fast = [name for name, env in envs.items() if all(server.fork is not None for server in env.servers)]
    slow = {name: SLOW_TREES for name in envs if name not in fast}
    rest = max(trees - sum(slow.values()), len(fast))
    return slow | {name: rest // len(fast) + (number < rest % len(fast)) for number, name in enumerate(fast)}


def examine(env: LoadedEnv, name: str, trees: int, seed: int, folder: Path) -> Findings:
    """Play the trees of an environment; play them again in other ways, and compare."""
    found = Findings()
    tasks = [task.id for task in select_tasks(env.suite, Plan(agent="random", limit=trees))]
    trials = -(-trees // len(tasks))
    lots = Lots()
    play_trees(env, folder / "whole", lots, seed=seed, trials=trials, tasks=tasks)
    before = count_resources()
    with TrajectoryStore.open(folder / "whole") as store:
        roots = store.summaries()
        paths = [store.load(row.episode.id) for row in store.branches()]
        infra = [row.reason for row in [*roots, *(row.episode for row in store.branches())] if row.outcome.is_infra]
    found.trees, found.branches = len(roots), len(paths)
    found.wrong += [f"an episode without a score: {reason}" for reason in infra[:SHOWN]]
    compare_replays(env, paths, found)
    long = [task for task in tasks if lots.asked[task]]  # the others end with their first step
    if some := long[: -(-len(long) // KILLED_SHARE)]:
        last = random.Random(seed).randint(1, sum(lots.asked[task] for task in some))
        owner_tag = kill_in_mid_tree(name, folder / "killed", last, some, seed, trials)
        play_trees(env, folder / "killed", Lots(), seed=seed, trials=trials, tasks=some)
        compare_trees(read_trees(folder / "whole"), read_trees(folder / "killed"), found)
        remove_leftovers([each for each in find_leftovers() if each.owner == owner_tag])
        found.left += [f"left by the killed process: {thing}" for thing in find_marked(owner_tag, "bwrap")]
    more = how_many_more(before, count_resources())
    found.left += [f"left: {count} {kind} more than before" for kind, count in more.items() if count]
    return found


def compare_replays(env: LoadedEnv, paths: Sequence[Trajectory], found: Findings) -> None:
    """Play the calls of every branch again on a fresh world, and note each that differs."""
    paths = [path for path in paths if not path.outcome.is_infra]
    for path, again in zip(paths, asyncio.run(replay(env, paths, REPLAYS)), strict=True):
        found.steps += len(path.steps)
        differs = [number for number, keys in enumerate(zip(path.steps, again, strict=True), 1) if differ(*keys)]
        if not differs and len(again) == len(path.steps):
            found.equal += 1
        elif len(found.wrong) < SHOWN:
            found.wrong.append(f"{path.task}: a branch differs from its replay at steps {differs}")


def differ(step: Step, again: Step) -> bool:
    return (step.world_key, step.state_key) != (again.world_key, again.state_key)


def kill_in_mid_tree(name: str, folder: Path, last: int, tasks: Sequence[str], seed: int, trials: int) -> str:
    """The tag of a process that has played some of these trees, and was killed when it had seen so many steps."""
    folder.mkdir()
    words = [name, str(folder), str(last), str(seed), str(trials), *tasks]
    program = [sys.executable, str(random_tree_play.__file__), *words]
    done = subprocess.run(program, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != -signal.SIGKILL:
        raise SystemExit(f"random_trees: {name}: the process was to be killed, and ended with {done.returncode}")
    return done.stdout.strip()


def compare_trees(whole: Tree, resumed: Tree, found: Findings) -> None:
    """Note each resumed tree that is not the one that was played without a break."""
    roots = {(task, trial) for task, trial, _ in resumed}
    found.resumed = len(roots)
    for root in sorted(roots):
        one, other = ({place: path for place, path in trees.items() if place[:2] == root} for trees in (whole, resumed))
        found.same += one == other
        if one != other:
            found.wrong.append(f"{root}: a resumed tree is another one")


if __name__ == "__main__":
    main()
