"""Privileges, attacks and stressors on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from stderr_lines import errors

FORBID = "[[rule]]\neffect = 'forbid'\ntools = ['transfer']\n"
BIG = FORBID + "arguments.amount = { minimum = 60 }\n"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(BIG)
    return path


def test_check_proves_which_gold_is_blocked(rules: Path) -> None:
    done = gymcp("check", BANK, "--privileges", rules, "--json")
    assert done.returncode == 1
    checks = json.loads(done.stdout)["checks"]
    assert checks["privileges"]["detail"].startswith("1 of 3 gold calls of 3 tasks are blocked; first: pay_back_100")
    assert not checks["oracle"]["passed"]
    assert checks["reset"]["passed"]


def test_a_run_under_rules_keeps_them_and_is_graded_again_with_them(rules: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = gymcp("eval", BANK, "--privileges", rules, "--stress", "noisy", "--out", run, "--json")
    assert json.loads(done.stdout)["success"] == pytest.approx(2 / 3)
    config = json.loads((run / "run.json").read_text())["config"]
    assert config["stress"] == ["noisy"]
    assert config["privileges"]["rule"][0]["arguments"] == {"amount": {"minimum": 60}}
    assert json.loads(gymcp("grade", run, "--json").stdout)["changed"] == 0
    assert gymcp("eval", BANK, "--out", run, "--resume").returncode == 2


def test_rules_over_an_unknown_tool_are_refused_before_a_run(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text(FORBID.replace("transfer", "send_money"))
    done = gymcp("eval", BANK, "--privileges", path, "--out", tmp_path / "run")
    assert done.returncode == 2
    assert "rule 1: no tool 'send_money'; have balance, transfer" in done.stderr
    assert not (tmp_path / "run").exists()


def test_stress_reports_the_drop_of_an_agent_that_knows_the_tools_by_heart() -> None:
    done = gymcp("stress", BANK, "--stressor", "renamed", "--stressor", "noisy", "--agent", "oracle", "--json")
    told = json.loads(done.stdout)
    assert (told["score"], told["tasks"]) == (1.0, 3)
    assert [(row["stressor"], row["drop"]) for row in told["stressors"]] == [("renamed", 1.0), ("noisy", 0.0)]
    low, high = told["stressors"][0]["ci95"]
    assert -1 <= low < high == 1  # three tasks, and all alike: that is no certainty


def test_the_gates_of_a_suite_are_one_line_of_a_table() -> None:
    done = gymcp("suites", "--check", "--only", "backoffice", "--json")
    assert done.returncode == 0, done.stdout
    (row,) = json.loads(done.stdout)["suites"]
    assert (row["suite"], row["sample"], row["tools"], row["wrong"]) == ("backoffice", 4, 23, [])
    assert row["passed"]["oracle"] == [4, 4]
    assert row["passed"]["mutated"][0] == row["passed"]["null"][0] == 0
    (line,) = errors(done.stderr)
    assert line.startswith("1/1 backoffice: pass, ")
    assert gymcp("suites", "--full").returncode == 2
