"""One run on 1, 2 and 4 nodes of a Ray cluster, and with two nodes killed; all nodes are on this machine.

Scaling: episodes of 10 turns behind a policy that thinks for a fixed time (`stub_policy.py`), a few at a time per node,
so that the machine is mostly idle and only the wait for the policy limits the rate. The time is from the start of the
first episode to the end of the last one, by their records. Overhead: episodes without a policy, one at a time, on one
node and without Ray; episodes of a training, whose policy is the driver's, in the same way. Faults: two of four
nodes are ended with SIGKILL in mid-run. Exit code 1 if an episode was lost, counted twice, or scored otherwise than
without Ray.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from child_processes import run_port_server
from counter import TURNS
from ray_nodes import RayCluster, run_cluster
from report_table import Result, against, options, show

from gymcp.store import TrajectoryStore
from gymcp.trainers.run.metrics_log import read_metrics

ENV = Path(__file__).with_name("counter.py")
BANK = Path(__file__).parents[1] / "examples" / "bank.py"
STUB = Path(__file__).with_name("stub_policy.py")
LATENCY_S = 0.5
PER_NODE = 4
"""Episodes at a time on one node."""
ROUNDS = 6
"""Episodes that each place of a node plays."""
NODES = (1, 2, 4)
KILLED = 2
RUN_S = 1800.0
RECIPE = """
env = "backoffice"
model = {vocabulary = 600, hidden = 32, layers = 1, heads = 2, context = 640}
tasks = {levels = [1]}
rollout = {groups = 8, episodes = 8, max_tokens = 8, max_turns = 3, concurrency = 1}
learn = {iterations = 3}
evaluation = {every = 0, tasks = 1}
"""
"""A training whose episodes take little time: what sending takes is seen."""


def main() -> None:
    parser = options(__doc__, "fewer episodes")
    parser.add_argument("--episodes", type=int, default=2000, help="with nodes killed")
    args = parser.parse_args()
    rounds, alone, many = (2, 30, 120) if args.quick else (ROUNDS, 300, args.episodes)
    results: list[Result] = []
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        for nodes in NODES:
            with run_cluster([{}] * nodes) as cluster:
                results.append(measure_rate(at / f"scaling-{nodes}", nodes, rounds, cluster, results))
                if nodes == 1:
                    results += _measure_overhead(at, alone, cluster)
                    results += _measure_training(at, cluster)
                if nodes == max(NODES):
                    faults, wrong = _kill_nodes(at, many, cluster)
    show("ray_scale", [*results, *faults], as_json=args.json)
    for line in wrong:
        print(line, file=sys.stderr)
    sys.exit(bool(wrong))


def measure_rate(run: Path, nodes: int, rounds: int, cluster: RayCluster, earlier: Sequence[Result]) -> Result:
    """Episodes a second; against one node, the ratio of the rates."""
    episodes = nodes * PER_NODE * rounds
    with run_port_server(str(STUB), "--turns", str(TURNS), "--latency", str(LATENCY_S)) as (_, address):
        play_run(run, [ENV, "--policy", f"openai:{address}/v1#stub", "--trials", episodes], PER_NODE, cluster)
    rate = episodes / measure_span(run)
    metric = f"{nodes} nodes, {PER_NODE} episodes at a time on each, {LATENCY_S:g} s for an answer"
    if not earlier:
        return Result(metric=metric.replace("nodes", "node", 1), value=rate, unit="episodes/s")
    return against(metric, rate, "episodes/s", earlier[0])


def _measure_overhead(at: Path, episodes: int, cluster: RayCluster) -> list[Result]:
    """Milliseconds for an episode, with one at a time: without Ray, on one node, and the difference."""
    words = [BANK, "--tasks", "pay_back_5", "--trials", episodes]
    play_run(at / "alone", words, 1, None)
    play_run(at / "one-node", words, 1, cluster)
    plain, there = (1e3 * measure_span(at / run) / episodes for run in ("alone", "one-node"))
    base = Result(metric="an episode without a policy, one at a time, without Ray", value=plain, unit="ms")
    return [
        base,
        against("the same on one node", there, "ms", base),
        Result(metric="overhead of an episode", value=there - plain, unit="ms"),
    ]


def _measure_training(at: Path, cluster: RayCluster) -> list[Result]:
    """Milliseconds for an episode of a training, one at a time: without Ray, on one node, and the difference."""
    recipe = at / "recipe.toml"
    recipe.write_text(RECIPE)
    times = []
    for run, where in ((at / "train-alone", None), (at / "train-node", cluster)):
        run_gymcp(["train", recipe, "--out", run, "--json"], where)
        seconds = sum(row.get("seconds/rollout", 0.0) for row in read_metrics(run))
        with TrajectoryStore.open(run) as store:
            times.append(1e3 * seconds / len(store.summaries()))
    base = Result(metric="an episode of a training, one at a time, without Ray", value=times[0], unit="ms")
    return [
        base,
        against("the same on one node", times[1], "ms", base),
        Result(metric="overhead of an episode of a training", value=times[1] - times[0], unit="ms"),
    ]


def _kill_nodes(at: Path, episodes: int, cluster: RayCluster) -> tuple[list[Result], list[str]]:
    """Results of a run with nodes killed, and sentences about what is not as it must be."""
    trials = -(-episodes // 3)
    words = [BANK, "--trials", trials]
    play_run(at / "whole", words, PER_NODE, None)
    run, kills = at / "killed", [trials * 3 * (number + 1) // (KILLED + 2) for number in range(KILLED)]

    def kill_in_time(process: subprocess.Popen[str]) -> None:
        for node, moment in enumerate(kills):
            while _count(run) < moment and process.poll() is None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(timeout=0.05)
            cluster.kill(node)

    play_run(run, words, PER_NODE, cluster, kill_in_time)
    expected, found = _read_verdicts(at / "whole"), _read_verdicts(run)
    with TrajectoryStore.open(run) as store:
        lost_attempts = sum(row.outcome.is_infra for row in store.summaries(latest=False))
    twice = sum(count - 1 for count in Counter(key for key, _ in found).values())
    missing = len({key for key, _ in expected} - {key for key, _ in found})
    other = len({*found} - {*expected})
    line = f"{len(expected)} episodes, {KILLED} of {max(NODES)} nodes killed"
    results = [
        Result(metric=f"{line}: lost", value=missing, unit="episodes"),
        Result(metric=f"{line}: counted twice", value=twice, unit="episodes"),
        Result(metric=f"{line}: scored otherwise than without Ray", value=other, unit="episodes"),
        Result(metric=f"{line}: played again", value=lost_attempts, unit="episodes"),
    ]
    return results, [f"{result.metric}: {result.value:g}" for result in results[:3] if result.value]


def play_run(
    run: Path,
    words: Sequence[object],
    concurrency: int,
    cluster: RayCluster | None,
    beside: Callable[[subprocess.Popen[str]], None] = lambda process: None,
) -> None:
    """Run `gymcp eval` to its end; `beside` is called while it runs."""
    run_gymcp(["eval", *words, "--concurrency", concurrency, "--out", run, "--json"], cluster, beside)


def run_gymcp(
    words: Sequence[object],
    cluster: RayCluster | None,
    beside: Callable[[subprocess.Popen[str]], None] = lambda process: None,
) -> None:
    """Run a command to its end, on the cluster if there is one; `beside` is called while it runs."""
    command = [*words, *(["--ray", cluster.address] if cluster is not None else [])]
    process = subprocess.Popen(
        [sys.executable, "-m", "gymcp.cli", *map(str, command)],
        env=dict(cluster.environment) if cluster is not None else None,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    beside(process)
    _, said = process.communicate(timeout=RUN_S)
    if process.returncode:
        raise SystemExit(f"gymcp {' '.join(map(str, command))}: exit code {process.returncode}: {said}")


def measure_span(run: Path) -> float:
    """Seconds from the start of the first episode to the end of the last one."""
    with TrajectoryStore.open(run) as store:
        rows = store.summaries()
    started = min(row.usage.started_at for row in rows)
    return max(row.usage.started_at + row.usage.wall_s for row in rows) - started


def _read_verdicts(run: Path) -> list[tuple[tuple[str, int], float | None]]:
    """Task, trial and score of every attempt that counts."""
    with TrajectoryStore.open(run) as store:
        rows = store.summaries(latest=False)
    return [((row.task, row.trial), row.score) for row in rows if not row.outcome.runs_again]


def _count(run: Path) -> int:
    if not (run / "trajectories.sqlite").exists():
        return 0
    with TrajectoryStore.open(run) as store:
        return len(store.summaries())


if __name__ == "__main__":
    main()
