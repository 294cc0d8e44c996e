"""Reports say what their figures rest on: bounds, lost tasks, episodes played again, and the n of pass@k."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from gymcp.agents.runner.run import RunEnd
from gymcp.cli.evaluation.eval_matrix import Played, describe_cell
from gymcp.cli.summary_table import caveat_lines, trial_lines
from gymcp.evaluators.names import LOSS_NOTE, LOST_IN_ALL
from gymcp.evaluators.report import read_report, write_report
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Json, Task, Trajectory


def no_tasks(run: object) -> dict[str, Task]:
    return {}


def record(folder: Path, trials: dict[str, list[float | None]], *, lost_first: int = 0, **config: Json) -> Path:
    """A run with these scores; the first `lost_first` episodes were lost once before they were scored."""
    with (
        create_run(folder, {"env": "shop", "suite": "shop", "agent": "react", **config}),
        TrajectoryStore.open(folder, write=True) as store,
    ):
        for n, (task, scores) in enumerate(trials.items()):
            for trial, score in enumerate(scores):
                if n < lost_first:
                    store.append(
                        Trajectory(
                            id=f"{task}/{trial}/lost", env="shop", task=task, trial=trial, outcome=Outcome.TIMEOUT
                        ),
                        {},
                    )
                outcome = Outcome.SCORED if score is not None else Outcome.ENV_INFRA
                played = Trajectory(
                    id=f"{task}/{trial}", env="shop", task=task, trial=trial, score=score, outcome=outcome
                )
                store.append(played, {})
    return folder


def test_every_form_of_the_report_names_the_denominators(tmp_path: Path) -> None:
    trials: dict[str, list[float | None]] = {f"t{n:02}": [1.0, float(n % 2)] for n in range(20)}
    record(tmp_path / "run", {**trials, "gone": [None]}, lost_first=4)
    summary = write_report(tmp_path / "run")
    page = (tmp_path / "run" / "report.html").read_text()
    markdown = read_report([tmp_path / "run"], no_tasks).text("md").replace("\\", "")
    for text in (page, markdown):
        for words in (
            "40/41 scored, 1 infra (97.6 %)",
            "73.2 .. 75.6 %",
            "20 of 21; no figure says anything about the other 1",
            "success of episodes lost and played again",
            "C(n-c, k) / C(n, k)",
            "not (c/n)^k",
        ):
            assert words in text
    assert summary["success_bounds"] == [30 / 41, 31 / 41]
    assert (summary["tasks"], summary["tasks_without_score"]) == (21, 1)
    assert summary["retries"]["first"]["success"] == 0.75
    retried = summary["retries"]["retried"]
    assert (retried["episodes"], retried["scored"], retried["success"]) == (8, 8, 0.75)
    assert (summary["retries"]["difference"], summary["retries"]["p"]) == (0.0, 1.0)
    assert summary["trials"]["denominators"][1] == {
        "k": 2, "tasks": 20, "tasks_short": 1, "fewest_n": 2, "most_n": 2,
    }  # fmt: skip
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary


def test_the_terminal_says_what_the_success_rests_on(tmp_path: Path) -> None:
    trials: dict[str, list[float | None]] = {f"t{n:02}": [1.0, float(n % 2)] for n in range(20)}
    summary = write_report(record(tmp_path / "run", {**trials, "gone": [None]}, lost_first=4))
    assert caveat_lines(summary) == [
        "over all episodes, success is 73.2 % if the lost ones failed, else up to 75.6 %",
        "1 of 21 tasks have no scored episode: no figure says anything about them",
        "played again after a loss: 8 episodes with success 75.0 %, against 75.0 % at the first attempt (p = 1)",
    ]
    assert trial_lines(summary) == [
        "pass@2 100.0 %, pass^2 50.0 % (unbiased estimates, of the 20 of 21 tasks that have 2 scored trials)"
    ]


def test_episodes_that_lost_a_server_in_every_attempt_are_named_beside_the_success(tmp_path: Path) -> None:
    folder = record(tmp_path / "run", {"a": [1.0], "b": [0.0]})
    with TrajectoryStore.open(folder, write=True) as store:
        reason = f"the server ended; {LOST_IN_ALL} 3 attempts"
        spent = Trajectory(id="c/0", env="shop", task="c", trial=0, score=0.0, outcome=Outcome.BUDGET_EXHAUSTED)
        store.append(replace(spent, reason=reason), {})
    summary = write_report(folder)
    assert summary["lost_in_all_attempts"] == 1
    assert caveat_lines(summary) == [f"1 graded though a server was lost in every attempt, {LOSS_NOTE}"]
    assert f"1: {LOSS_NOTE}" in (folder / "report.html").read_text()


def test_a_whole_run_has_no_caveat(tmp_path: Path) -> None:
    summary = write_report(record(tmp_path / "run", {"a": [1.0], "b": [0.0]}))
    assert (caveat_lines(summary), trial_lines(summary)) == ([], [])
    assert (summary["refused"], summary["retries"], summary["trials"]) == (None, None, None)


def test_a_summary_from_before_has_no_caveats() -> None:
    assert caveat_lines({"scored": 1, "episodes": 2}) == []
    assert trial_lines({"pass_k": []}) == []


def test_the_floor_in_the_runs_config_decides(tmp_path: Path) -> None:
    scores: dict[str, list[float | None]] = {"a": [1.0], "b": [None]}
    assert write_report(record(tmp_path / "strict", scores))["refused"].startswith("1 of 2 episodes (50 %)")
    assert write_report(record(tmp_path / "loose", scores, min_coverage=0.5))["refused"] is None
    assert write_report(tmp_path / "loose", min_coverage=0.6)["refused"].startswith("1 of 2 episodes")


def test_a_run_without_a_headline_has_none_beside_others(tmp_path: Path) -> None:
    suite: dict[str, Json] = {"env_version": "0", "suite_version": "1", "suite_digest": "ab"}
    whole = record(tmp_path / "whole", {f"t{n}": [float(n < 15)] for n in range(20)}, **suite)
    sparse = record(tmp_path / "sparse", {f"t{n}": [1.0 if n < 15 else None] for n in range(20)}, **suite)
    report = read_report([whole, sparse], no_tasks)
    page = report.text("html")
    assert "No ranking: too few episodes have a score in sparse." in page
    assert "<b>75.0 .. 100.0 %</b>" in page
    assert "<b>100.0 %</b>" not in page
    assert any(problem.startswith("sparse: 15 of 20 episodes (75 %)") for problem in report.problems)


def test_a_table_of_runs_shows_bounds_for_a_run_without_a_headline(tmp_path: Path) -> None:
    sparse = write_report(record(tmp_path / "sparse", {"a": [1.0], "b": [None]}))
    whole = write_report(record(tmp_path / "whole", {"a": [1.0], "b": [1.0]}))
    played = Played(summaries={0: sparse, 1: whole}, errors={}, ended=RunEnd.FINISHED)
    assert describe_cell(0, played) == "50.0 .. 100.0 %, 1/2 scored"
    assert describe_cell(1, played) == "100.0 % (34.2 – 100.0)"


def test_the_priced_score_stands_beside_the_success_of_one_run(tmp_path: Path) -> None:
    with (
        create_run(tmp_path / "run", {"env": "shop", "suite": "shop", "agent": "always_asks"}),
        TrajectoryStore.open(tmp_path / "run", write=True) as store,
    ):
        paid = Trajectory(id="a", env="shop", task="a", score=1.0, components={"net_of_price": 0.95})
        store.append(replace(paid, outcome=Outcome.SCORED), {})
    summary = write_report(tmp_path / "run")
    assert summary["success"] == 1.0
    assert "less the price of questions and calls, the score is 95.0 %" in caveat_lines(summary)
    for text in ((tmp_path / "run" / "report.html").read_text(), read_report([tmp_path / "run"], no_tasks).text("md")):
        assert "less the price of questions and calls" in text
        assert "95.0 %" in text
