"""``gymcp eval A B --policy X --policy Y``: a run for each pair, one bad pair among good ones, and one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp
from stderr_lines import errors

from gymcp.agents.runner.run import RunEnd
from gymcp.cli.evaluation.eval_matrix import Played, describe_cell
from gymcp.store import TrajectoryStore, open_run


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """A second environment: the first under another name, with two tasks."""
    file = tmp_path / "shop.py"
    file.write_text(BANK.read_text().replace('name="bank"', 'name="shop"').replace("(5, 30, 100)", "(5, 30)"))
    return file


def test_each_environment_has_a_run_and_a_row(second: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    done = gymcp("eval", BANK, second, "--out", out)
    assert done.returncode == 0, done.stderr
    assert {folder.name for folder in out.iterdir()} == {"bank-oracle", "shop-oracle"}
    rows = {line.split()[1]: line for line in done.stdout.splitlines() if line.startswith("│ ")}
    assert rows.keys() == {"bank", "shop"}
    assert "100.0 % (43.9 – 100.0)" in rows["bank"]
    assert f"runs: {out}" in done.stdout
    for name in ("bank-oracle", "shop-oracle"):
        assert (out / name / "report.html").is_file()


def test_the_net_of_price_is_in_the_cell_if_calls_or_questions_had_a_price() -> None:
    plain = {"scored": 4, "episodes": 4, "success": 1.0, "ci95": [0.5, 1.0], "components": {}}
    priced = {**plain, "components": {"net_of_price": 0.75}}
    played = Played(summaries={0: plain, 1: priced}, errors={}, ended=RunEnd.FINISHED)
    assert [describe_cell(n, played) for n in (0, 1)] == [
        "100.0 % (50.0 – 100.0)",
        "100.0 % (50.0 – 100.0), net of price 75.0 %",
    ]


def test_policies_are_columns_and_a_bad_one_is_named(second: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    models = ("huh:1", "local:nowhere/mine")
    words = [word for model in models for word in ("--policy", model)]
    done = gymcp("eval", BANK, second, *words, "--out", out, "--json", cwd=tmp_path)
    assert done.returncode != 0
    found = json.loads(done.stdout)
    assert (found["runs"], found["ended"]) == ([], "finished")
    assert [(Path(each["env"]).stem, each["policy"]) for each in found["failed"]] == [
        (env, model) for env in ("bank", "shop") for model in models
    ]
    assert [line.split(": ")[1] for line in errors(done.stderr)] == [
        f"{env} by {name}" for env in ("bank", "shop") for name in ("huh:1", "mine")
    ]


def test_a_matrix_goes_on_and_grows(second: Path, tmp_path: Path) -> None:
    out = tmp_path / "all"
    assert gymcp("eval", BANK, "--out", out / "bank-oracle", "--limit", 1).returncode == 0
    with TrajectoryStore.open(out / "bank-oracle") as store:
        (kept,) = [row.id for row in store.summaries()]
    done = gymcp("eval", BANK, second, "--out", out, "--resume", "--limit", 2, "--json")
    assert done.returncode == 0, done.stderr
    assert [run["episodes"] for run in json.loads(done.stdout)["runs"]] == [2, 2]
    with TrajectoryStore.open(out / "bank-oracle") as store:
        assert kept in [row.id for row in store.summaries()]
    assert open_run(out / "bank-oracle").config["limit"] == 2


def test_environments_of_the_same_name_keep_apart(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "bank.py").write_text(BANK.read_text())
    done = gymcp("eval", BANK, "x/bank.py", "--limit", 1, "--out", "all", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len({run["run"] for run in json.loads(done.stdout)["runs"]}) == 2
    assert len(list((tmp_path / "all").iterdir())) == 2
