from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

pytestmark = pytest.mark.xdist_group("credit")  # these tests read one run

KEEPS_NONE = """
from dataclasses import replace

import numpy as np

from gymcp.trainers.credit.presets import grpo


def keeps_none():
    return replace(grpo(), filters=(lambda batch: np.zeros(len(batch.tasks), bool),))
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "bank"
    assert gymcp("eval", BANK, "--agent", "random", "--trials", "3", "--out", out).returncode == 0
    return out


def test_credit_prints_the_advantages_of_a_recorded_run(run: Path) -> None:
    done = gymcp("credit", str(run), "--preset", "gigpo", "--set", "gamma=0.9", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["preset"], found["options"], found["episodes"]) == (0, "gigpo", {"gamma": 0.9}, 9)
    assert set(found["anchors"]) == {"recorded", "world", "world+observation", "world+history", "turn", "text"}
    assert sum(len(row["steps"]) for row in found["advantages"]) == found["steps"] == found["steps_without_tokens"]


@pytest.mark.parametrize(
    "words",
    ["hgpo --set history=1", "graphgpo", "graphgpo --set nodes=text", "g2po --set nodes=world", "gagpo", "tigpo"],
)
def test_every_graph_preset_gives_credit_to_a_recorded_run(run: Path, words: str) -> None:
    done = gymcp("credit", run, "--preset", *words.split(), "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["preset"], found["episodes"]) == (0, words.split(maxsplit=1)[0], 9)
    assert sum(len(row["steps"]) for row in found["advantages"]) == found["steps"]


def test_a_preset_that_drops_every_episode_says_so(run: Path) -> None:
    preset = run.parent / "keeps_none.py"
    preset.write_text(KEEPS_NONE)
    done = gymcp("credit", run, "--preset", f"{preset}:keeps_none")
    assert (done.returncode, done.stderr) == (0, "")
    assert "dropped every episode" in " ".join(done.stdout.split())
    assert json.loads(gymcp("credit", run, "--preset", f"{preset}:keeps_none", "--json").stdout)["advantages"] == []


def test_the_signal_of_a_preset_that_would_mislead_is_not_measured(run: Path) -> None:
    done = gymcp("credit", run, "--diagnose", "--preset", "hgpo", "--set", "history=1")
    assert done.returncode == 2
    assert "--diagnose measures no signal of preset 'hgpo'" in done.stderr


def test_a_run_is_diagnosed_for_people_for_programs_and_in_its_report(run: Path) -> None:
    done = gymcp("credit", run, "--diagnose", "--json")
    found = json.loads(done.stdout)
    assert (done.returncode, found["episodes"], found["ends"]["groups"]) == (0, 9, 3)
    assert [each["by"] for each in found["progress"]] == ["transitions", "gold"]
    assert found["signal"]["missing"].endswith("a state that enough episodes visited, and it takes 5")
    (report,) = json.loads(gymcp("report", run, "--format", "json").stdout)["runs"]
    assert report["credit"]["advice"] == found["advice"]
    printed = " ".join(gymcp("credit", run, "--diagnose").stdout.split())
    assert all(sentence in printed for sentence in found["advice"])
    assert "Where credit comes from" in gymcp("report", run, "--format", "md").stdout


def test_credit_reads_gold_if_the_preset_needs_it(run: Path) -> None:
    done = gymcp("credit", str(run), "--preset", "matchtir", "--json")
    assert any(value != 0 for row in json.loads(done.stdout)["advantages"] for value in row["steps"])
