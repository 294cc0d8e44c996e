"""A success that is an upper bound, because a search saw the verdicts, is marked wherever it is shown."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from records import order_episode
from test_report import Page
from test_suite_matrix import no_tasks
from test_viewer_page import enter, open_page, wait_for_run_page
from viewer_process import run_viewer

from gymcp.cli.runs.compare import execute, read_contenders
from gymcp.cli.runs.watch import Goal, describe_state
from gymcp.evaluators.compare import compare
from gymcp.evaluators.report import read_report
from gymcp.evaluators.viewer.run_list import RunList
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.evaluators.viewer.summary import describe_runs, summarise_run
from gymcp.store import TrajectoryStore, create_run

WHY = "the search saw the verdicts of its episodes"
MARK = "(upper bound)"


def write(folder: Path, *, sees: bool, suite: str = "shop", paying: int = 3) -> Path:
    config = {"env": suite, "suite": suite, "agent": "react", "policy": f"openai:http://h/v1#{folder.name}"}
    marks = {"search": "best_of_n,value=verdict", "upper_bound": WHY} if sees else {}
    with create_run(folder, config | marks), TrajectoryStore.open(folder, write=True) as store:
        for n in range(4):
            store.append(order_episode(f"t{n}", 0, pays=n < paying, run=folder.name), {})
    return folder


@pytest.fixture
def sees(tmp_path: Path) -> Path:
    return write(tmp_path / "sees", sees=True)


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    return write(tmp_path / "plain", sees=False, paying=1)


def test_a_comparison_marks_the_run_in_its_table_its_sentences_and_its_json(
    sees: Path, plain: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = compare(read_contenders([sees, plain])[0])
    assert [each.name for each in found.standings] == [f"sees {MARK}", "plain"]
    assert found.pairs[0].words.startswith(f"sees {MARK} and plain cannot be told apart")
    for as_json in (False, True):
        execute([sees, plain], metric=None, resolution=0.05, min_coverage=None, as_json=as_json)
        said = capsys.readouterr().out
        assert f"sees {MARK}" in said
        assert f"plain {MARK}" not in said


def test_the_report_of_one_run_marks_its_headline(sees: Path, plain: Path) -> None:
    shown = read_report([sees], no_tasks).text("html")
    assert f"<strong>75.0 % {MARK}</strong>" in shown
    assert re.search(rf"<title>[^<]*75\.0 % {re.escape(MARK)}", shown)
    assert f"75.0 % {MARK}" in read_report([sees], no_tasks).text("md")
    assert MARK not in read_report([plain], no_tasks).text("html")


def test_the_report_of_several_marks_the_run_and_its_figure(sees: Path, plain: Path) -> None:
    report = read_report([sees, plain], no_tasks)
    shown = Page(report.text("html")).text
    assert f"sees {MARK}75.0 % {MARK}" in shown  # a row of the standings
    assert f"sees {MARK} and plain cannot be told apart" in shown
    assert f"25.0 % {MARK}" not in shown
    assert report.text("md").count(f"sees {MARK}") >= 3
    assert [each["name"] for each in report.object()["runs"]] == [f"sees {MARK}", "plain"]


def test_a_table_of_suites_marks_the_figure_of_the_run(sees: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", sees=False, suite="tau2", paying=1)
    shown = Page(read_report([sees, other], no_tasks).text("html")).text
    assert f"75.0 % {MARK}" in shown
    assert f"25.0 % {MARK}" not in shown


def test_the_data_of_the_viewer_and_the_line_of_watch_have_the_mark(sees: Path, plain: Path, tmp_path: Path) -> None:
    runs = RunList([tmp_path])
    for each in runs.all():
        runs.read_now(each)
    assert {run["label"]: run["upper_bound"] for run in runs.object()["runs"]} == {"sees": WHY, "plain": ""}
    with open_runs([sees, plain], follow=False) as opened:
        one, other = describe_runs(opened)["runs"]
    assert (one["name"], one["upper_bound"]) == (f"sees · shop · react {MARK}", WHY)
    assert (other["name"], other["upper_bound"]) == ("plain · shop · react", "")
    for folder, says in ((sees, f"success 75.0 % {MARK}"), (plain, "success 25.0 % (")):
        assert says in describe_state(summarise_run(folder), [], Goal(), running=False, now=0.0)


@pytest.mark.xdist_group("viewer")
def test_every_view_of_the_viewer_shows_the_mark(browser: Browser, sees: Path, plain: Path, tmp_path: Path) -> None:
    with run_viewer(tmp_path) as address:
        for page in open_page(browser, enter(browser, address)):
            row = page.locator(".runtable tbody tr")
            expect(row.filter(has_text="sees")).to_contain_text("upper bound")
            expect(row.filter(has_text="plain")).not_to_contain_text("upper bound")
            page.keyboard.press("m")
            expect(page.locator("#heads .head", has_text="sees")).to_contain_text("upper bound")
            page.keyboard.press("Escape")
            page.keyboard.press("s")
            expect(page.locator(".suitetable .entry", has_text="75.0 %")).to_contain_text("upper bound")
            page.locator(".suitetable .entry a", has_text="75.0 %").click()
            wait_for_run_page(page)
            expect(page.locator("#headline")).to_contain_text("upper bound")
            expect(page.locator("#detail h1")).to_contain_text(MARK)
