"""``gymcp eval A B --policy X --policy Y``: a run for each pair, one bad pair among good ones, and one table."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, says
from cli_runner import BANK, gymcp
from page_blocks import DOCS, read_blocks
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


def pays_or_not(number: int, body: dict[str, Any]) -> Reply:
    """The model `one` pays the debt that the prompt names; the model `two` says that it has."""
    if body["model"] == "two" or any(message["role"] == "tool" for message in body["messages"]):
        return says("Paid.", prompt=100, completion=10)
    debt = next(word for word in body["messages"][0]["content"].split() if word.isdigit())
    call = ("transfer", json.dumps({"source": "ann", "target": "bob", "amount": int(debt)}))
    return says("", call, prompt=100, completion=10)


def type_matrix(url: str, second: Path, *more: object, cwd: Path) -> tuple[int, dict[str, str], str]:
    """Exit code, rows of the table and errors of the matrix in docs/command-line.md, on small environments."""
    (line,) = (each.text for each in read_blocks(DOCS / "command-line.md") if "tau2 workbench" in each.text)
    line = (
        line.replace("\\\n", " ")
        .replace("http://127.0.0.1:8000/v1", url)
        .replace("bfcl tau2 workbench", f"{BANK} {second}")
    )
    assert (line.count(url), line.count(".py")) == (2, 2)
    done = gymcp(*line.split()[1:], *more, cwd=cwd)
    rows = {row.split()[1]: row for row in done.stdout.splitlines() if row.startswith("│ ")}
    return done.returncode, rows, done.stderr


def test_models_that_answer_fill_the_table_and_have_a_run_each(second: Path, tmp_path: Path) -> None:
    with chat_server(pays_or_not) as server:
        code, rows, wrong = type_matrix(server.url, second, cwd=tmp_path)
    assert code == 0, wrong
    cells = {name: [cell.strip() for cell in row.split("│")[2:-1]] for name, row in rows.items()}
    assert cells == {
        "bank": ["100.0 % (43.9 – 100.0)", "0.0 % (0.0 – 56.1)"],
        "shop": ["100.0 % (34.2 – 100.0)", "0.0 % (0.0 – 65.8)"],
    }
    runs = tmp_path / "runs" / "all"
    played = {folder.name: open_run(folder).config for folder in runs.iterdir()}
    assert {name: (each["env"], each["policy"].partition("#")[2]) for name, each in played.items()} == {
        f"{env}-{model}": (env, model) for env in ("bank", "shop") for model in ("one", "two")
    }
    assert all((runs / name / "report.html").is_file() for name in played)


def test_a_budget_is_for_all_pairs_together(second: Path, tmp_path: Path) -> None:
    """Each answer costs 0.2: `one` spends 1.2 on the bank and `two` 0.6, so that 0.1 of 1.9 are left for the shop."""
    prices = tmp_path / "prices.toml"
    prices.write_text("".join(f"[models.{name}]\nprompt = 1000\ncompletion = 10000\n" for name in ("one", "two")))
    options = ("--prices", prices, "--max-cost", 1.9, "--concurrency", 1)
    with chat_server(pays_or_not) as server:
        code, rows, wrong = type_matrix(server.url, second, *options, cwd=tmp_path)
    assert (code, "--max-cost 1.9 is spent" in wrong) == (4, True), wrong
    assert "not reached" in rows["shop"]
    spent = {}
    for folder in (tmp_path / "runs" / "all").iterdir():
        with TrajectoryStore.open(folder) as store:
            spent[folder.name] = math.fsum(row.usage.cost for row in store.summaries(latest=False))
    assert spent == pytest.approx({"bank-one": 1.2, "bank-two": 0.6, "shop-one": 0.2})


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
