"""`gymcp eval --ray` on the nodes of a real cluster: the same scores as here, whatever dies.

What else may happen to a run: `long_ray_runs.py`.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from ray_nodes import RayCluster

from gymcp.outcome import Outcome
from gymcp.scale.distribution import NODE_KEY
from gymcp.store import TrajectoryStore
from gymcp.types import Trajectory

pytestmark = pytest.mark.xdist_group("ray")
TRIALS = 60
"""Episodes of each of three tasks: enough that a run is not over when a node is killed."""
Verdicts = dict[tuple[str, int], tuple[object, ...]]
"""Task and trial -> everything about the episode that must not depend on the machine."""
WAIT_S = 120.0
EPISODES = 3 * TRIALS


def start(run: Path, cluster: RayCluster, *more: object) -> subprocess.Popen[str]:
    words = ["eval", BANK, "--trials", TRIALS, "--concurrency", 2, "--out", run, "--ray", cluster.address, *more]
    return subprocess.Popen(
        [sys.executable, "-m", "gymcp.cli", *map(str, words)],
        env=dict(cluster.environment),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_for(run: Path, episodes: int, process: subprocess.Popen[str]) -> None:
    """Return once that many episodes are recorded."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until and process.poll() is None:
        if (run / "trajectories.sqlite").exists():
            with TrajectoryStore.open(run) as store:
                if len(store.summaries()) >= episodes:
                    return
        time.sleep(0.05)
    raise AssertionError(f"not {episodes} episodes after {WAIT_S:g} s: {process.communicate(timeout=10)}")


def attempts(run: Path) -> list[Trajectory]:
    with TrajectoryStore.open(run) as store:
        return list(store.iter_trajectories(latest=False))


def verdicts(run: Path) -> Verdicts:
    """The verdicts of all attempts that count; fails if an episode has two."""
    counted = [row for row in attempts(run) if not row.outcome.runs_again]
    found: Verdicts = {(t.task, t.trial): (t.outcome, t.score, t.seed, t.final_key, len(t.steps)) for t in counted}
    assert len(found) == len(counted)
    return found


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Verdicts:
    """The verdicts of a run without Ray."""
    run = tmp_path_factory.mktemp("here") / "run"
    assert gymcp("eval", BANK, "--trials", TRIALS, "--out", run).returncode == 0
    return verdicts(run)


def test_a_node_that_is_killed_loses_no_episode_and_plays_none_twice(
    two_nodes: RayCluster, here: Verdicts, tmp_path: Path
) -> None:
    process = start(tmp_path / "run", two_nodes)
    wait_for(tmp_path / "run", 30, process)
    two_nodes.kill(0)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    assert verdicts(tmp_path / "run") == here
    assert len(here) == EPISODES
    rows = attempts(tmp_path / "run")
    assert len({row.provenance[NODE_KEY] for row in rows if NODE_KEY in row.provenance}) == 2
    lost = [row for row in rows if row.outcome.is_infra]
    assert lost
    assert {(row.outcome, row.score) for row in lost} == {(Outcome.ENV_INFRA, None)}
    assert all("was lost" in row.reason for row in lost)
    assert f"; {len(lost)} episodes are played again" in said
