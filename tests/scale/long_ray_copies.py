"""`gymcp eval --ray` of a project that only the driver has: its nodes get copies of the files, once."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from equipment import usable
from ray_nodes import run_cluster
from remote_driver import make_project
from test_ray_runs import attempts

from gymcp.scale.distribution import NODE_KEY

pytestmark = pytest.mark.xdist_group("ray")
TRIALS = 20
FILES = 6


def test_nodes_play_a_project_that_they_do_not_have_and_get_no_file_twice(ray: None, tmp_path: Path) -> None:
    usable("bwrap")
    project = make_project(tmp_path)
    words = ["eval", "envs/shop.py", "--agent", "agents/own.py:own", "--tasks", "@tasks.txt", "--trials", TRIALS]
    homes = [{"GYMCP_HOME": str(tmp_path / f"home-{number}")} for number in range(2)]
    with run_cluster(homes) as cluster:
        first = project.run(cluster, *words, "--concurrency", 2, "--out", tmp_path / "first")
        assert first.returncode == 0, first.stderr
        assert len(re.findall(rf"copied {FILES} files \(0\.0 MB\) to node ", first.stderr)) == 2
        again = project.run(cluster, *words, "--out", tmp_path / "again")
        assert again.returncode == 0, again.stderr
        assert "copied" not in again.stderr
        (project.files / "envs" / "debts_of_project.py").write_text("DEBTS = (5, 100)\n")
        changed = project.run(cluster, *words, "--out", tmp_path / "changed")
        assert changed.returncode == 0, changed.stderr
        assert len(re.findall(r"copied 1 file \(0\.0 MB\) to node ", changed.stderr)) == 2
    rows = attempts(tmp_path / "first")
    assert {(row.task, row.score) for row in rows} == {("pay_back_5", 1.0), ("pay_back_100", 1.0)}
    assert len(rows) == 2 * TRIALS
    assert len({row.provenance[NODE_KEY] for row in rows}) == 2
    assert "/copies/" not in repr(rows)
    config = json.loads((tmp_path / "first" / "run.json").read_text())["config"]
    assert config["source"] == f"{project.seen}/envs/shop.py"
    assert config["agent_source"] == f"{project.seen}/agents/own.py:own"
    assert list(project.seen.iterdir()) == []
