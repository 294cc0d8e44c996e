"""Reports name the tasks that are known to be faulty upstream, with both success rates, and can leave them out."""

from __future__ import annotations

from pathlib import Path

from gymcp.cli.summary_table import caveat_lines
from gymcp.evaluators.report import read_report, write_report
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Task, Trajectory


def no_tasks(run: object) -> dict[str, Task]:
    return {}


def record(folder: Path, scores: dict[str, float], *, suite: str = "bfcl", version: str = "2026.3.23+1") -> Path:
    config = {"env": suite, "suite": suite, "suite_version": version, "agent": "react"}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for task, score in scores.items():
            store.append(Trajectory(id=task, env=suite, task=task, score=score), {})
    return folder


SCORES = {"multi_turn_base_4": 0.0, "multi_turn_base_5": 1.0, "multi_turn_base_6": 1.0, "multi_turn_base_7": 0.0}


def test_both_rates_stand_side_by_side_and_the_tasks_are_named(tmp_path: Path) -> None:
    run = record(tmp_path / "run", SCORES)
    summary = write_report(run)
    assert summary["success"] == 0.5
    faulty = summary["faulty"]
    assert (faulty["with"]["success"], faulty["without"]["success"]) == (0.5, 2 / 3)
    assert (faulty["listed"], faulty["left_out"]) == (7, False)
    assert [each["task"] for each in faulty["tasks"]] == ["multi_turn_base_4"]
    page = (run / "report.html").read_text()
    markdown = read_report([run], no_tasks).text("md").replace("\\", "")
    for text in (page, markdown):
        for words in ("multi_turn_base_4", "gorilla#1367", "50.0 %", "66.7 %", "was checked on 2026-11-23"):
            assert words in text
        assert "--without-faulty leaves them out" in text
    assert caveat_lines(summary) == [
        "tasks known to be faulty upstream: 1 (multi_turn_base_4); success 50.0 % with them, 66.7 % without them"
    ]


def test_a_report_can_leave_them_out_and_still_names_them(tmp_path: Path) -> None:
    run = record(tmp_path / "run", SCORES)
    summary = write_report(run, without_faulty=True)
    assert (summary["success"], summary["episodes"]) == (2 / 3, 3)
    assert (summary["faulty"]["with"]["success"], summary["faulty"]["left_out"]) == (0.5, True)
    page = (run / "report.html").read_text()
    assert "leave these tasks out" in page
    assert "multi_turn_base_4" in page
    assert "<strong>66.7 %</strong>" in page


def test_an_empty_list_says_that_it_is_empty_and_since_when(tmp_path: Path) -> None:
    run = record(tmp_path / "run", {"a": 1.0}, suite="tau2", version="0.26.0+1")
    summary = write_report(run)
    assert (summary["faulty"]["tasks"], summary["faulty"]["listed"]) == ([], 0)
    words = "was checked on 2026-11-23 and is empty: no task is known to be faulty."
    assert words in (run / "report.html").read_text()
    assert words in read_report([run], no_tasks).text("md").replace("\\", "")
    assert caveat_lines(summary) == []


def test_a_run_without_a_faulty_task_and_a_suite_without_a_list(tmp_path: Path) -> None:
    sound = record(tmp_path / "sound", {"multi_turn_base_5": 1.0})
    assert "none of its 7 tasks is in this run" in read_report([sound], no_tasks).text("html")
    other = record(tmp_path / "other", {"a": 1.0}, suite="shop")
    assert write_report(other, without_faulty=True)["faulty"] is None
    assert "faulty upstream" not in (other / "report.html").read_text()


def test_runs_are_compared_without_the_faulty_tasks_if_they_are_left_out(tmp_path: Path) -> None:
    runs = [record(tmp_path / "one", SCORES), record(tmp_path / "two", {**SCORES, "multi_turn_base_4": 1.0})]
    for without, tasks in ((False, 4), (True, 3)):
        comparison = read_report(runs, no_tasks, without_faulty=without).comparison
        assert comparison is not None
        assert comparison.pairs[0].paired.tasks == tasks
