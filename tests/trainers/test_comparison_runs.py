"""A tiny registered comparison in real training runs: two arms from one warm start, in two stages."""

from __future__ import annotations

from pathlib import Path

import pytest
from comparisons.registration import read_registrations
from comparisons.results import read_results
from comparisons.runs import Bench, Progress, plan_first, plan_rest, run_jobs, shrink
from equipment import usable


@pytest.fixture
def bwrap() -> None:
    usable("bwrap")


@pytest.mark.usefixtures("bwrap")
def test_arms_start_from_one_model_and_go_on_after_the_stop_rule(tmp_path: Path) -> None:
    registration = shrink(read_registrations()[-1], ["grpo", "gigpo"])
    bench = Bench(registration=registration, runs=tmp_path / "runs", results=tmp_path / "results")
    rates = dict.fromkeys(("grpo", "gigpo"), 1e-3)
    first, rest = plan_first(bench, rates), plan_rest(bench, rates, registration.arms)
    said: list[str] = []
    progress = Progress(bench, rest, say=said.append)
    run_jobs(bench, first, progress, retry=False)
    results = read_results(registration, bench.results)
    assert {key: run.state_in(registration) for key, run in results.items()} == {("grpo", 100): "unfinished"}
    run_jobs(bench, rest, progress, retry=False)
    results = read_results(registration, bench.results)
    assert {run.state_in(registration) for run in results.values()} == {"finished"}
    assert {tuple(row["iteration"] for row in run.rows) for run in results.values()} == {(0, 1, 2)}
    starts = [run.rows[0]["test/seeds/success"] for run in results.values()]
    assert (len(starts), len(set(starts))) == (2, 1)
    assert sum("warm start of 8 examples" in line for line in said) == 1
    said.clear()
    run_jobs(bench, rest, progress, retry=False)
    assert said == []
