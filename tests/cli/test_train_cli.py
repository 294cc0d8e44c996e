from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

pytestmark = pytest.mark.xdist_group("credit")  # of one run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "bank"
    assert gymcp("eval", BANK, "--agent", "random", "--trials", "3", "--out", out).returncode == 0
    return out


def test_credit_prints_the_advantages_of_a_recorded_run(run: Path) -> None:
    done = gymcp("credit", str(run), "--preset", "gigpo", "--set", "gamma=0.9", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["preset"], found["options"], found["episodes"]) == (0, "gigpo", {"gamma": 0.9}, 9)
    assert set(found["anchors"]) == {"recorded", "world", "world+observation", "world+history", "turn"}
    assert sum(len(row["steps"]) for row in found["advantages"]) == found["steps"] == found["steps_without_tokens"]


def test_credit_reads_gold_if_the_preset_needs_it(run: Path) -> None:
    done = gymcp("credit", str(run), "--preset", "matchtir", "--json")
    assert any(value != 0 for row in json.loads(done.stdout)["advantages"] for value in row["steps"])
