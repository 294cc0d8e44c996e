"""`gymcp eval --ray --plan` with `engine = "vllm"` on a real cluster: actor and server end together."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_runner import gymcp
from long_ray_plan import WORDS, read_samples
from ray_nodes import RayCluster, descendants, run_cluster
from test_ray_runs import attempts

from gymcp.scale.distribution import NODE_KEY
from gymcp.store import TrajectoryStore

pytestmark = pytest.mark.xdist_group("vllm")
PLAN = """
[policy]
engine = "vllm"
vllm_args = ["--max-num-seqs", "8"]
resources = { policy = 1 }
[[group]]
labels = { zone = "far" }
"""
TRIALS = 12
MARK = "GYMCP_TEST_CLUSTER"
"""Environment variable of the nodes, and of all that they start."""
WAIT_S = 1800.0
"""Seconds to wait for any one thing: a server starts in half a minute, or in minutes if all cores are busy."""


def list_servers(mark: str) -> list[int]:
    """Processes of vLLM that the nodes with the mark have started, directly or not."""
    return [int(at.name) for at in Path("/proc").iterdir() if at.name.isdigit() and _is_server(at, mark)]


def _is_server(at: Path, mark: str) -> bool:
    with contextlib.suppress(OSError):
        is_marked = f"{MARK}={mark}".encode() in (at / "environ").read_bytes().split(b"\0")
        return is_marked and b"vllm" in (at / "cmdline").read_bytes().lower()
    return False


def find_server(mark: str) -> int:
    """The process that answers requests, and has started the others."""
    name = b"vllm.entrypoints"
    (found,) = [pid for pid in list_servers(mark) if name in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def find_actor(cluster: RayCluster) -> int:
    """The actor on the first node, which plays nothing."""
    below = descendants(cluster.pids[0])
    (found,) = [pid for pid in below if b"_Actor" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return found


def wait_until_ended(servers: list[int], mark: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline and {*servers} & {*list_servers(mark)}:
        time.sleep(0.1)
    assert not {*servers} & {*list_servers(mark)}


def wait_for_episode(run: Path, process: subprocess.Popen[str]) -> None:
    """Return once another episode is recorded."""
    deadline, before = time.monotonic() + WAIT_S, count_episodes(run)
    while time.monotonic() < deadline and process.poll() is None:
        if count_episodes(run) > before:
            return
        time.sleep(0.05)
    raise AssertionError(f"no episode: {process.communicate(timeout=WAIT_S)}")


def count_episodes(run: Path) -> int:
    if not (run / "trajectories.sqlite").exists():
        return 0
    with TrajectoryStore.open(run) as store:
        return len(store.summaries())


def start(cluster: RayCluster, plan: Path, run: Path) -> subprocess.Popen[str]:
    words = [*WORDS, "--trials", TRIALS, "--concurrency", 1, "--out", run, "--ray", cluster.address, "--plan", plan]
    command = [sys.executable, "-m", "gymcp.cli", *map(str, words)]
    return subprocess.Popen(
        command, env=dict(cluster.environment), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_server_and_actor_end_together_and_the_model_is_served_again(
    ray: None, vllm_is_installed: None, tmp_path: Path
) -> None:
    mark, plan, run = str(tmp_path), tmp_path / "plan.toml", tmp_path / "there"
    settings: list[dict[str, object]] = [{"resources": {"policy": 1}}, {"labels": {"zone": "far"}}]
    plan.write_text(PLAN)
    with run_cluster([{MARK: mark}, {MARK: mark}], settings) as cluster:
        process = start(cluster, plan, run)
        wait_for_episode(run, process)
        servers = list_servers(mark)
        os.kill(find_actor(cluster), signal.SIGKILL)
        wait_until_ended(servers, mark)
        wait_for_episode(run, process)
        servers = list_servers(mark)
        os.kill(find_server(mark), signal.SIGKILL)
        wait_until_ended(servers, mark)
        _, said = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0, said
        wait_until_ended(list_servers(mark), mark)
    assert "its worker has died; the model is opened again" in said
    assert "its vLLM server ended with code -9; the model is opened again" in said
    assert said.count("starts vLLM for policy 'tiny'") == 3
    rows = [row for row in attempts(run) if not row.outcome.runs_again]
    assert len({row.provenance[NODE_KEY] for row in rows}) == 1
    assert gymcp(*WORDS, "--trials", TRIALS, "--out", tmp_path / "here").returncode == 0
    assert read_samples(rows) == read_samples(attempts(tmp_path / "here")), "at temperature 0 both engines agree"
