"""`gymcp report` and `gymcp view` as users type them, with what they may mistype."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_runner import BANK, gymcp

from gymcp.store import TrajectoryStore


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    made = folder / "oracle", folder / "random"
    for run in made:
        done = gymcp("eval", BANK, "--agent", run.name, "--sandbox", "none", "--out", run, "--json")
        assert done.returncode == 0, done.stderr
    return made


def test_several_runs_are_reported_in_three_formats(runs: tuple[Path, Path]) -> None:
    done = gymcp("report", *runs)
    assert (done.returncode, done.stdout.split()[-1]) == (0, str(runs[0].parent / "report.html"))
    assert "runs of bank" in (runs[0].parent / "report.html").read_text()
    assert gymcp("report", *runs, "--format", "md").stdout.startswith("# 2 runs")
    found = json.loads(gymcp("report", *runs, "--format", "json").stdout)
    assert [run["agent"] for run in found["runs"]] == ["oracle", "random"]
    assert [gate["state"] for gate in found["runs"][1]["gates"]] == ["held", "not run", "not run"]


def test_a_run_that_is_none_is_told_and_the_others_are_reported(runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = gymcp("report", runs[0], tmp_path / "none", "--format", "json")
    assert done.returncode == 1
    assert f"gymcp: not reported: run folder {tmp_path / 'none'}" in done.stderr
    assert len(json.loads(done.stdout)["runs"]) == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["report", "nowhere"], "run folder nowhere"),
        (["report", "nowhere", "--format", "pdf"], "no format 'pdf'; have html, md, json"),
        (["report", "nowhere", "nowhere"], "is named twice"),
        (["view", "nowhere"], "run folder nowhere: no such folder"),
        (["view", "nowhere", "--tokenizer", "nothing"], "there is no tokenizer.json"),
        (["train", "--save"], "--save goes with --dry-run"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(arguments: list[str], why: str, tmp_path: Path) -> None:
    done = gymcp(*arguments, cwd=tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert why in done.stderr


def test_a_dry_run_keeps_its_credit_where_it_is_asked_to(runs: tuple[Path, Path]) -> None:
    done = gymcp("train", "--dry-run", runs[1], "--preset", "rloo", "--save", "--json")
    assert done.returncode == 0, done.stderr
    with TrajectoryStore.open(runs[1]) as store:
        rows = store.summaries()
        assert [store.credits(row.id)[0].preset for row in rows] == ["rloo"] * len(rows)
