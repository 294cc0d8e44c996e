"""Ways from a report into the viewer."""

from __future__ import annotations

import html
import re
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from inner_command import gymcp
from playwright.sync_api import Browser, expect
from recorded_runs import make_run, write_run
from records import HOSTILE_TEXT, order_episode
from test_export_page import open_export

from gymcp.evaluators.metrics.reasons import group_reasons
from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.report.links import query_of_reason, query_of_task
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.types import Trajectory

REASONS = (
    "orders.7.status is 'open', wanted 'paid'",
    "orders.81.status is 'open', wanted 'paid'",
    'answer "x [1]" differs: expected {"a": [1, 2]}, got {"a": "ÄÖ"}',
    "file 'report.txt' is missing\n  in the workspace",
    "Ünïcode reason: 3 of 5 calls",
    "w" * 900,
    "",
    HOSTILE_TEXT,
    "list[0].name: wanted [a*b?] or [^x]",
)
TASKS = (
    "plain",
    'with "quotes"',
    "with [brackets] and *",
    "x" * 900,
    "a\ud800b",
    HOSTILE_TEXT,
    "Täsk",
    "two words",
    "n8",
)


def failing() -> list[Trajectory]:
    return [
        order_episode(task, 0, pays=False, run=f"r{n}", reason=reason)
        for n, (task, reason) in enumerate(zip(TASKS, REASONS, strict=True))
    ]


def test_every_query_finds_the_episodes_that_it_is_for(tmp_path: Path) -> None:
    episodes = [*failing(), order_episode("plain", 1, pays=True, run="good")]
    with open_runs([make_run(tmp_path / "run", episodes)], follow=False) as runs:
        for n, task in enumerate(TASKS, start=1):
            assert n in [row["n"] for row in runs.index.page(0, query_of_task(task), "recorded", 0)["rows"]], task
        kinds = group_reasons([(str(n), reason) for n, reason in enumerate(REASONS, start=1)])
        assert len(kinds) == len(REASONS) - 1
        for kind in kinds:
            found = runs.index.page(0, query_of_reason(kind.kind), "recorded", 0)
            assert int(kind.task) in [row["n"] for row in found["rows"]], kind
            assert found["total"] == kind.episodes, kind
        assert [row["n"] for row in runs.index.page(0, query_of_task("plain"), "recorded", 0)["rows"]] == [1]


def test_a_report_has_commands_until_an_export_lies_beside_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "my run", "steady", paying=1, tasks=3)
    write_report(run)
    before = (run / "report.html").read_text()
    command = f"gymcp view '{run}' --find 'is:failed task=\"task001\"'"
    assert html.escape(command) in before
    assert "view/index.html" not in before
    done = gymcp("view", run, "--export", run / "view")
    assert done.exit_code == 0, done.output
    after = (run / "report.html").read_text()
    links = [urlsplit(html.unescape(link)) for link in re.findall(r'href="(view/[^"]+)"', after)]
    assert {parse_qs(link.fragment)["q"][0] for link in links} == {
        'is:failed task="task001"',
        'is:failed task="task002"',
    } | {query_of_reason(kind.kind) for kind in group_reasons([("t", "order 7 is open, wanted paid")])}
    assert "<summary>open</summary>" not in after
    other = tmp_path / "reports"
    other.mkdir()
    assert 'href="../my%20run/view/index.html#q=' in read_report([run], lambda run: {}, place=other).text("html")
    assert "view/index.html" not in read_report([run], lambda run: {}).text("html")


def test_an_export_of_several_runs_is_no_place_to_lead_to(tmp_path: Path) -> None:
    run, other = (write_run(tmp_path / name, name, paying=1, tasks=2) for name in "ab")
    for words in ([run, other], [tmp_path]):
        done = gymcp("view", *words, "--export", run / "view")
        assert done.exit_code == 0, done.output
        write_report(run)
        assert "view/index.html" not in (run / "report.html").read_text()


@pytest.mark.xdist_group("viewer")
def test_links_of_a_report_open_the_failed_episodes(browser: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", [*failing(), order_episode("plain", 1, pays=True, run="good")])
    write_report(run)
    assert gymcp("view", run, "--export", run / "view").exit_code == 0
    for page in open_export(browser, run, "report.html"):
        page.get_by_role("row", name=re.compile("^two words")).get_by_role("link", name="open").click()
        expect(page.locator("#found")).to_contain_text("1 episode")
        expect(page.locator(".row")).to_contain_text("two words")
        page.go_back()
        page.get_by_role("row", name=re.compile("no reason given")).get_by_role("link", name="open").click()
        expect(page.locator(".row")).to_contain_text("Täsk")
