"""``gymcp eval A B --policy X --policy Y``: a run for each pair, one bad pair among good ones, and one table."""

from __future__ import annotations

import json
import math
import signal
import sqlite3
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from chat_server import Reply, chat_server, says
from cli_runner import BANK, GYMCP, gymcp
from page_blocks import DOCS, read_blocks
from stderr_lines import errors

from gymcp.agents.runner.run import RunEnd
from gymcp.cli.evaluation.eval_matrix import Played, describe_cell
from gymcp.errors import StoreError
from gymcp.store import TrajectoryStore, open_run
from gymcp.store.run_folder import lock_run

PRICES = "".join(f"[models.{name}]\nprompt = 1000\ncompletion = 10000\n" for name in ("one", "two"))
"""With them, each answer of `pays_or_not` costs 0.2."""


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


def test_a_cell_tells_a_run_that_broke_off_from_one_that_did_not_begin() -> None:
    summary = {"scored": 4, "episodes": 4, "success": 1.0, "ci95": [0.5, 1.0], "components": {}}
    errors = {n: StoreError("the disk is full") for n in (0, 1, 2)}
    played = Played(summaries={0: summary}, errors=errors, broken_off={0, 1}, ended=RunEnd.INTERRUPTED)
    assert [describe_cell(n, played) for n in (0, 1, 2, 3)] == [
        "100.0 % (50.0 – 100.0), broke off at 4 episodes",
        "broke off before its first episode",
        "not run",
        "not reached",
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
    assert [line.split(": ")[1] for line in errors(done.stderr)] == [  # a name of the hub may still be fetched
        f"{env} by {name}" for name in ("huh:1", "mine") for env in ("bank", "shop")
    ]


def pays_or_not(number: int, body: dict[str, Any]) -> Reply:
    """The model `one` pays the debt that the prompt names; the model `two` says that it has."""
    if body["model"] == "two" or any(message["role"] == "tool" for message in body["messages"]):
        return says("Paid.", prompt=100, completion=10)
    debt = next(word for word in body["messages"][0]["content"].split() if word.isdigit())
    call = ("transfer", json.dumps({"source": "ann", "target": "bob", "amount": int(debt)}))
    return says("", call, prompt=100, completion=10)


def add_costs(runs: Path) -> dict[str, float]:
    """Run folder -> cost of its episodes."""
    spent = {}
    for folder in runs.iterdir():
        with TrajectoryStore.open(folder) as store:
            spent[folder.name] = math.fsum(row.usage.cost for row in store.summaries(latest=False))
    return spent


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
    prices.write_text(PRICES)
    options = ("--prices", prices, "--max-cost", 1.9, "--concurrency", 1)
    with chat_server(pays_or_not) as server:
        code, rows, wrong = type_matrix(server.url, second, *options, cwd=tmp_path)
    assert (code, "--max-cost 1.9 is spent" in wrong) == (4, True), wrong
    assert "not reached" in rows["shop"]
    assert add_costs(tmp_path / "runs" / "all") == pytest.approx({"bank-one": 1.2, "bank-two": 0.6, "shop-one": 0.2})


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


def test_wrong_names_are_told_before_the_first_run(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with chat_server(pays_or_not) as server:
        models = (f"openai:{server.url}#one", "opnai:x", "local:./gone", "local:models/lost")
        words = [word for model in models for word in ("--policy", model)]
        done = gymcp("eval", BANK, "nope", *words, "--out", "all", "--json", cwd=tmp_path)
    assert done.returncode == 2
    assert [run["episodes"] for run in json.loads(done.stdout)["runs"]] == [3]
    lines = done.stderr.splitlines()
    begins = next(n for n, line in enumerate(lines) if " at a time" in line)
    assert [line.split(": will be left out: ")[0] for line in lines[:begins] if "left out" in line] == [
        f"gymcp: {pair}"
        for pair in (
            "bank by opnai:x",
            "bank by gone",
            "bank by lost",
            "nope by one",
            "nope by opnai:x",
            "nope by gone",
            "nope by lost",
        )
    ]
    assert errors("\n".join(lines[begins:])) == []


def test_a_run_that_breaks_off_counts_with_its_episodes(second: Path, tmp_path: Path) -> None:
    """Each episode costs 0.4, so that 0.1 of 0.5 are left for the shop once the bank has lost its second one."""
    out, prices = tmp_path / "all", tmp_path / "prices.toml"
    prices.write_text(PRICES)
    locks: list[sqlite3.Connection] = []

    def lock_in_second_episode(number: int, body: dict[str, Any]) -> Reply:
        if number == 3:  # after a test request, and two for the first episode
            store = sqlite3.connect(out / "bank-one" / "trajectories.sqlite", check_same_thread=False)
            store.execute("BEGIN IMMEDIATE")
            locks.append(store)
        return pays_or_not(number, body)

    with chat_server(lock_in_second_episode) as server:
        model = ("--policy", f"openai:{server.url}#one", "--prices", prices, "--concurrency", 1)
        done = gymcp("eval", BANK, second, *model, "--out", out, "--max-cost", 0.5, "--json")
        locks[0].close()
        assert done.returncode == 4, done.stderr
        found = json.loads(done.stdout)
        assert [run["episodes"] for run in found["runs"]] == [1, 1]
        assert [(each["env"], each["episodes"]) for each in found["failed"]] == [(str(BANK), 1)]
        assert add_costs(out) == pytest.approx({"bank-one": 0.4, "shop-one": 0.2})
        failure, go_on = errors(done.stderr)
        assert failure.startswith("gymcp: bank by one: run folder ")
        assert failure.endswith("; recorded episodes: 1")
        assert f"--out {out} --resume" in go_on
        done = gymcp("eval", BANK, second, *model, "--out", out, "--max-cost", 9, "--resume", "--json")
        assert [run["scored"] for run in json.loads(done.stdout)["runs"]] == [3, 2], done.stderr


def test_a_pair_that_was_refused_has_no_figures_of_an_older_run(second: Path, tmp_path: Path) -> None:
    """Another seed, a folder that holds a run, and one that another process works on."""
    out = tmp_path / "all"
    words = ("eval", BANK, second, "--limit", 1, "--out", out)
    assert gymcp(*words).returncode == 0
    with lock_run(out / "bank-oracle"):
        used = gymcp(*words, "--resume", "--json")
    assert [run["env"] for run in json.loads(used.stdout)["runs"]] == ["shop"]
    assert [line.split("in use by")[0] for line in errors(used.stderr)] == [
        f"gymcp: bank by oracle: run folder {out}/bank-oracle: "
    ]
    for more in (("--seed", 7, "--resume"), ()):
        done = gymcp(*words, *more, "--json")
        found = json.loads(done.stdout)
        assert (done.returncode, found["runs"]) == (2, [])
        assert [each["episodes"] for each in found["failed"]] == [0, 0]
        told = errors(done.stderr)
        assert [line.split(" by ")[0] for line in told] == ["gymcp: bank", "gymcp: shop"]  # and no hint to go on
        assert "recorded episodes" not in done.stderr
    assert gymcp(*words, "--seed", 7, "--resume").stdout.count("not run") == 2


def test_a_pair_that_was_refused_takes_nothing_of_the_budget(second: Path, tmp_path: Path) -> None:
    """The older run of the bank has cost 0.4, and each episode of the shop costs 0.4."""
    out, prices = tmp_path / "all", tmp_path / "prices.toml"
    prices.write_text(PRICES)
    with chat_server(pays_or_not) as server:
        model = ("--policy", f"openai:{server.url}#one", "--prices", prices, "--concurrency", 1, "--limit", 1)
        assert gymcp("eval", BANK, *model, "--out", out / "bank-one").returncode == 0
        done = gymcp("eval", BANK, second, *model, "--out", out, "--max-cost", 0.4, "--resume", "--seed", 7, "--json")
    found = json.loads(done.stdout)
    assert [(run["env"], run["scored"]) for run in found["runs"]] == [("shop", 1)], done.stderr
    assert found["ended"] == "finished"


def test_an_interrupt_while_a_model_is_opened_keeps_the_table(tmp_path: Path) -> None:
    asked, ended = threading.Event(), threading.Event()

    def hang_as_two(number: int, body: dict[str, Any]) -> Reply:
        if body["model"] == "two":
            asked.set()
            ended.wait(60)
        return pays_or_not(number, body)

    with chat_server(hang_as_two) as server:
        words = [word for model in ("one", "two") for word in ("--policy", f"openai:{server.url}#{model}")]
        command = [str(GYMCP), "eval", str(BANK), *words, "--out", "all"]
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            printed, told = process.communicate(timeout=60)
        finally:
            ended.set()
            process.kill()
    assert process.returncode == 130, told
    (row,) = (line for line in printed.splitlines() if line.startswith("│ bank"))
    assert [cell.strip() for cell in row.split("│")[2:-1]] == ["100.0 % (43.9 – 100.0)", "not reached"]
    assert errors(told) == ["gymcp: interrupted; to go on, type the same command with: --out all --resume"]


def test_debug_prints_the_tracebacks_of_pairs(second: Path, tmp_path: Path) -> None:
    (tmp_path / "boom.py").write_text("raise RuntimeError('boom')\n")
    (tmp_path / "all").mkdir()
    (tmp_path / "all" / "bank-oracle").write_text("a file")
    words = ("eval", "boom.py", BANK, second, "--out", "all", "--limit", 1)
    plain, debugged = gymcp(*words, cwd=tmp_path), gymcp("--debug", *words, "--resume", cwd=tmp_path)
    assert "Traceback" not in plain.stderr
    assert "RuntimeError: boom; gymcp --debug shows where" in plain.stderr
    assert 'boom.py", line 1, in <module>' in debugged.stderr
    assert debugged.stderr.count("Traceback (most recent call last)") >= 2
    assert "bank by oracle: run folder all/bank-oracle" in debugged.stderr.partition("run_folder.py")[2]
