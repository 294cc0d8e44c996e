"""The size at which a run over many nodes saturates: a model of 10 to 10,000 nodes with costs that are measured here.

Measured on one node: the length of an episode of 10 turns behind a policy that thinks for a fixed time, the CPU time of
an episode on its node, and the driver's CPU time for an episode, from two runs of different size. The model
(`cluster_model.py`) has the driver's real book of leases. It is checked against real runs on 2 and 4 nodes, which were
not used to fit it: the error of the rate is printed. Then come three workloads on clusters of growing size, each node
with 16 cores and as many episodes at a time: the largest size whose steady rate is at least 90 % of the ideal one.
Each workload is modelled twice: with a policy that nodes reach themselves, and with one whose samples go through the
driver, as in a training. What such a sample costs the driver is measured with a tiny model that is placed on one of two
nodes; its own computing is not counted.
"""

from __future__ import annotations

import os
import pickle
import resource
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster_model import Cluster, Costs, Outcome, simulate
from counter import TURNS
from ray_nodes import RayCluster, run_cluster
from ray_scale import BANK, ENV, PER_NODE, measure_rate, play_run
from report_table import Result, options, show

from gymcp.store import TrajectoryStore

CHECKED = (2, 4)
"""Sizes at which the model is compared with real nodes."""
SIZES = (10, 30, 100, 300, 1_000, 3_000, 10_000)
WORKLOADS = {"5 s": 5.0, "1 minute": 60.0, "10 minutes": 600.0}
NODE = Cluster(nodes=1, concurrency=16, cores=16)
SPREAD = 0.5
"""Standard deviation of the logarithm of an episode's length in the workloads: one in 100 takes three times as long."""
PLACES_FILLED = 6
"""Episodes that each place of the modelled nodes plays."""
PLAN = "[policy]\nresources = { policy = 1 }\n"
"""A model on a node, whose samples go through the driver."""
ENOUGH = 0.9
"""Share of the ideal rate below which a cluster counts as saturated."""


def main() -> None:
    parser = options(__doc__, "fewer episodes, and no more than 1,000 nodes")
    args = parser.parse_args()
    rounds, few, many = (2, 30, 120) if args.quick else (6, 100, 700)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        with run_cluster([{}]) as cluster:
            costs = _measure_costs(at, rounds, few, many, cluster)
        with run_cluster([{}, {}], [{"resources": {"policy": 1}}, {}]) as cluster:
            sample_s = _measure_sample(at, few, many, costs.exchange_s, cluster)
        checks = [_check(at, nodes, rounds, costs) for nodes in CHECKED]
    results = [
        Result(metric="an episode of 10 turns on one node", value=costs.episode_s, unit="s"),
        Result(metric="CPU time of an episode on its node", value=1e3 * costs.episode_cpu_s, unit="ms"),
        Result(metric="the driver's CPU time for a record", value=1e3 * costs.record_s, unit="ms"),
        Result(metric="the driver's CPU time for an exchange", value=1e3 * costs.exchange_s, unit="ms"),
        Result(metric="the driver's CPU time for a sample, beside its exchange", value=1e3 * sample_s, unit="ms"),
        *(result for check in checks for result in check),
    ]
    sizes = [size for size in SIZES if size <= 1_000] if args.quick else SIZES
    for name, seconds in WORKLOADS.items():
        workload = replace(costs, episode_s=seconds, spread=SPREAD)
        results += _find_limit(f"episodes of {name}", workload, sizes)
        sampled = replace(workload, samples=TURNS, sample_s=sample_s)
        results += _find_limit(f"episodes of {name}, {TURNS} samples through the driver", sampled, sizes)
    show("scale_simulation", results, as_json=args.json)


def _measure_costs(at: Path, rounds: int, few: int, many: int, cluster: RayCluster) -> Costs:
    """The costs of an episode, from runs on one node."""
    measure_rate(at / "one", 1, rounds, cluster, [])
    with TrajectoryStore.open(at / "one") as store:
        rows = store.summaries()
    episode_s = sum(row.usage.wall_s for row in rows) / len(rows)
    words = [ENV, "--agent", "null"]
    driver_s = _measure_slope(at / "driver", words, few, many, cluster)
    record_s = _measure_record(at / f"driver-{many}")
    node_s = _measure_slope(at / "node", words, few, many, None)
    return Costs(
        episode_s=episode_s,
        episode_cpu_s=node_s,
        record_s=record_s,
        exchange_s=max(0.0, driver_s - record_s),
    )


def _measure_sample(at: Path, few: int, many: int, exchange_s: float, cluster: RayCluster) -> float:
    """The driver's CPU seconds for a sample, beside its exchange. Each asks alone, because the driver is idle."""
    plan = at / "plan.toml"
    plan.write_text(PLAN)
    words = [BANK, "--tasks", "pay_back_5", "--policy", "tiny", "--max-tokens", 8, "--plan", plan]
    episode_s = _measure_slope(at / "samples", words, few, many, cluster)
    run = at / f"samples-{many}"
    with TrajectoryStore.open(run) as store:
        counts = [sum(step.sampled is not None for step in episode.steps) for episode in store.iter_trajectories()]
    samples = sum(counts) / len(counts)
    return max(0.0, (episode_s - exchange_s - _measure_record(run)) / samples - exchange_s)


def _measure_slope(run: Path, words: Sequence[object], few: int, many: int, cluster: RayCluster | None) -> float:
    """CPU seconds that one more episode costs the command and the processes that it has waited for."""
    seconds = []
    for episodes in (few, many):
        before = _children_cpu_s()
        play_run(run.with_name(f"{run.name}-{episodes}"), [*words, "--trials", episodes], PER_NODE, cluster)
        seconds.append(_children_cpu_s() - before)
    return (seconds[1] - seconds[0]) / (many - few)


def _children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _measure_record(run: Path) -> float:
    """CPU seconds to unpickle and to store one episode of the run."""
    with TrajectoryStore.open(run) as store:
        episodes = list(store.iter_trajectories())
    pickled = [pickle.dumps(replace(episode, id=uuid.uuid4().hex, final_state=None)) for episode in episodes]
    with tempfile.TemporaryDirectory() as folder, TrajectoryStore.open(Path(folder), write=True) as store:
        began = time.process_time()
        for one in pickled:
            store.append(pickle.loads(one), {})
        return (time.process_time() - began) / len(pickled)


def _check(at: Path, nodes: int, rounds: int, costs: Costs) -> tuple[Result, Result]:
    """The rate of real nodes, and the error of the model."""
    with run_cluster([{}] * nodes) as cluster:
        real = measure_rate(at / f"real-{nodes}", nodes, rounds, cluster, []).value
    episodes = nodes * PER_NODE * rounds
    cluster_here = Cluster(nodes=nodes, concurrency=PER_NODE, cores=_cores() / nodes)
    rate = episodes / simulate(cluster_here, costs, episodes=episodes).seconds
    return (
        Result(metric=f"rate on {nodes} real nodes", value=real, unit="episodes/s"),
        Result(metric=f"error of the model on {nodes} nodes", value=100 * (rate / real - 1), unit="%"),
    )


def _find_limit(line: str, costs: Costs, sizes: Sequence[int]) -> list[Result]:
    """Rates at the sizes, the driver's share of the time, and the largest size that is not saturated.

    With samples, a larger size than the first that is saturated is left out: it would take minutes.
    """
    outcomes: dict[int, Outcome] = {}
    for size in sizes:
        episodes = size * NODE.concurrency * PLACES_FILLED
        outcomes[size] = simulate(replace(NODE, nodes=size), costs, episodes=episodes)
        if costs.samples and outcomes[size].efficiency < ENOUGH:
            break
    fit = [size for size, outcome in outcomes.items() if outcome.efficiency >= ENOUGH]
    rates = [
        Result(metric=f"{line}, {size} nodes", value=outcome.steady_rate, unit="episodes/s")
        for size, outcome in outcomes.items()
    ]
    shares = [
        Result(metric=f"{line}, {size} nodes: the driver works", value=100 * outcome.driver_share, unit="%")
        for size, outcome in outcomes.items()
    ]
    largest = Result(metric=f"{line}: largest size that is not saturated", value=max(fit, default=0), unit="nodes")
    return [*rates, *shares, largest]


def _cores() -> int:
    return os.cpu_count() or 1


if __name__ == "__main__":
    main()
