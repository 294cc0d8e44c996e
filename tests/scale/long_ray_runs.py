"""`gymcp eval --ray`: drivers that die, trees, workers that hang, nodes that differ.

Too long for `make test`; `benchmarks/full_tests.py` runs them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from equipment import without_bubblewrap
from ray_nodes import RayCluster, run_cluster
from test_ray_runs import EPISODES, WAIT_S, Verdicts, attempts, here, start, verdicts, wait_for

from gymcp.store import TrajectoryStore

PARKED_NODE = Path(__file__).with_name("parked_node.py")
pytestmark = pytest.mark.xdist_group("ray")
__all__ = ["here"]  # the fixture


def test_a_driver_that_is_killed_or_interrupted_resumes(two_nodes: RayCluster, here: Verdicts, tmp_path: Path) -> None:
    run = tmp_path / "run"
    process = start(run, two_nodes)
    wait_for(run, 30, process)
    process.kill()
    process.communicate(timeout=WAIT_S)
    before = Counter((row.task, row.trial) for row in attempts(run))
    assert 0 < len(before) < EPISODES
    again = start(run, two_nodes, "--resume", "--json")
    wait_for(run, len(before) + 30, again)
    again.send_signal(signal.SIGINT)
    again.communicate(timeout=WAIT_S)
    assert again.returncode == 130
    last = start(run, two_nodes, "--resume", "--json")
    out, said = last.communicate(timeout=WAIT_S)
    assert last.returncode == 0, said
    assert json.loads(out)["outcomes"] == {"scored": EPISODES}
    assert verdicts(run) == here


def test_trees_come_back_whole(two_nodes: RayCluster, tmp_path: Path) -> None:
    words = ["--branch", "ways=2,steps=1,episodes=3", "--trials", 2]
    process = start(tmp_path / "there", two_nodes, *words)
    _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0, said
    assert gymcp("eval", BANK, *words, "--out", tmp_path / "here").returncode == 0
    branches = []
    for run in ("there", "here"):
        with TrajectoryStore.open(tmp_path / run) as store:
            rows = [(row.episode.task, row.episode.trial, row.branch, row.episode.score) for row in store.branches()]
            branches.append(sorted(rows))
    assert branches[0] == branches[1]
    assert len(branches[0]) > 0


def test_a_worker_that_is_parked_is_lost_though_ray_calls_it_alive_and_replaced(two_nodes: RayCluster) -> None:
    pids = ",".join(map(str, two_nodes.pids))  # all of them: the run ends only if one gets another worker
    command = [sys.executable, str(PARKED_NODE), two_nodes.address, pids, str(BANK), "20"]
    environment = {**two_nodes.environment, "PYTHONPATH": os.pathsep.join(sys.path)}  # for the modules of benchmarks/
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False)
    assert done.returncode == 0, done.stderr
    attempts = json.loads(done.stdout)
    assert Counter(outcome for outcome, _, last in attempts if last) == {"scored": 60}
    lost = [reason for _, reason, last in attempts if not last]
    assert lost
    assert all("no answer for" in reason for reason in lost)


def test_nodes_that_differ_are_named_before_an_episode_is_played(ray: None, tmp_path: Path) -> None:
    env = tmp_path / "odd.py"
    text = BANK.read_text()
    assert "(5, 30, 100)" in text
    env.write_text("import os\n" + text.replace("(5, 30, 100)", '(5, 30, int(os.environ.get("ODD", 100)))'))
    bare = without_bubblewrap(tmp_path)
    hidden = {"PATH": bare["PATH"], "PYTHONPATH": f"{bare['PYTHONPATH']}:{os.environ.get('PYTHONPATH', '')}"}
    with run_cluster([{"ODD": "99"}, hidden]) as cluster:
        command = ["eval", env, "--out", tmp_path / "run", "--ray", cluster.address]
        done = gymcp(*command, env=cluster.environment)
        checked = gymcp("doctor", "--ray", cluster.address, "--json", env=cluster.environment)
    assert done.returncode == 2
    assert done.stderr.count("node ") >= 2
    assert "suite_digest is" in done.stderr
    assert "bubblewrap" in done.stderr
    assert not (tmp_path / "run").exists()
    assert checked.returncode == 1
    nodes = [{row["what"]: row for row in rows} for rows in json.loads(checked.stdout)["nodes"].values()]
    assert [node["agreement"]["works"] for node in nodes] == [True, True]
    assert sorted(node["bubblewrap"]["works"] for node in nodes) == [False, True]
