"""The model of many nodes, in cases whose result can be told without it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_model import Cluster, Costs, crowd, simulate

COSTS = Costs(episode_s=10.0, episode_cpu_s=0.1, record_s=0.0, exchange_s=0.0)
CLUSTER = Cluster(nodes=4, concurrency=8, cores=2)


def test_with_a_driver_that_costs_nothing_no_node_ever_waits() -> None:
    outcome = simulate(CLUSTER, COSTS, episodes=4 * 8 * 5)
    assert outcome.seconds == pytest.approx(50.0)
    assert outcome.efficiency == pytest.approx(1.0)


def test_the_driver_bounds_the_rate_by_its_time_for_a_record() -> None:
    costs = replace(COSTS, record_s=1.0)
    outcome = simulate(CLUSTER, costs, episodes=320)
    assert outcome.steady_rate == pytest.approx(1.0, rel=0.01)
    assert outcome.driver_share == pytest.approx(1.0, rel=0.01)


def test_a_busy_driver_gets_many_attempts_in_one_exchange() -> None:
    free = simulate(CLUSTER, replace(COSTS, spread=0.5), episodes=640)
    dear = simulate(CLUSTER, replace(COSTS, spread=0.5, exchange_s=1.0), episodes=640)
    assert dear.exchanges < free.exchanges / 2


def test_episodes_that_need_more_cpu_than_a_node_has_take_longer() -> None:
    costs = replace(COSTS, episode_cpu_s=5.0)
    assert crowd(CLUSTER, costs) == 2.0
    assert simulate(CLUSTER, costs, episodes=320).seconds == pytest.approx(200.0)


def test_samples_bound_the_rate_by_the_drivers_time_for_them() -> None:
    """10 samples of 10 ms: the driver serves 10 episodes a second, and a node asks for those of 0.8 a second."""
    costs = replace(COSTS, spread=0.5, samples=10, sample_s=0.01)
    below, above = (replace(CLUSTER, nodes=nodes) for nodes in (10, 20))  # 12.5 nodes would have the driver busy
    assert simulate(below, costs, episodes=10 * 8 * 10).efficiency > 0.9
    saturated = simulate(above, costs, episodes=20 * 8 * 10)
    assert saturated.steady_rate == pytest.approx(10.0, rel=0.05)
    assert saturated.driver_share == pytest.approx(1.0, rel=0.01)


def test_samples_that_cost_nothing_add_exchanges_alone() -> None:
    plain, sampled = (simulate(CLUSTER, replace(COSTS, samples=samples), episodes=160) for samples in (0, 9))
    assert sampled.seconds == pytest.approx(plain.seconds)
    assert sampled.exchanges >= 4 * 5 * (9 + 1), "on 4 nodes 5 episodes, one after another, with 9 samples each"
