"""`gymcp tools` and `gymcp eval --retrieve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from stderr_lines import errors

from gymcp.cli.servers.commands import tools
from gymcp.errors import ConfigError

ENV = str(BANK)


def test_tools_are_listed_by_server_with_their_size(capsys: pytest.CaptureFixture[str]) -> None:
    tools(ENV, as_json=True)
    found = json.loads(capsys.readouterr().out)
    (row,) = found["servers"]
    assert sorted(row["tools"]) == ["balance", "transfer"]
    assert found["tools"] == 2
    assert row["characters"] == found["characters"] > 100


def test_words_find_tools_and_recall_measures_the_words_of_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    tools(ENV, search="transfers", as_json=True)
    assert json.loads(capsys.readouterr().out)["found"][0]["name"] == "transfer"
    tools(ENV, recall=True, k=[1, 2], as_json=True)
    rows = json.loads(capsys.readouterr().out)["recall"]
    assert [row["k"] for row in rows] == [1, 2]
    for row in rows:
        assert 0 <= row["ci95"][0] <= row["recall"] <= row["best"] <= 1


def test_an_agent_that_searches_uses_tools_that_are_not_shown_at_first(tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = gymcp("eval", BANK, "--agent", "adaptive", "--retrieve", 0, "--out", run, "--json")
    assert json.loads(done.stdout)["success"] == 1.0
    config = json.loads((run / "run.json").read_text())["config"]
    assert config["retrieval"] == {"top_k": 0, "budget": 12_000}
    assert "needed tools on offer" in (run / "report.html").read_text()
    assert json.loads(gymcp("grade", run, "--json").stdout)["changed"] == 0


def test_a_budget_without_room_is_one_line_and_exit_code_2() -> None:
    done = gymcp("eval", BANK, "--retrieve", 5, "--tool-budget", 300)
    assert done.returncode == 2
    assert "a budget of 300 characters is too small" in done.stderr
    assert len(errors(done.stderr)) == 1


def test_an_impossible_question_is_one_line() -> None:
    with pytest.raises(ConfigError, match="--k: only with --search or --recall"):
        tools(ENV, k=[3])
    with pytest.raises(ConfigError, match="--k: must be at least 1, not 0"):
        tools(ENV, recall=True, k=[0])
    with pytest.raises(ConfigError, match="give one of them"):
        tools(ENV, recall=True, search="x")
    with pytest.raises(ConfigError, match="no environment 'nowhere'"):
        tools("nowhere")
