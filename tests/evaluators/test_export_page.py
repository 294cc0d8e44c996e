"""An export opened from the disk in a real browser, without a server."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, Page, expect
from recorded_runs import write_hostile, write_run, write_training_run
from test_viewer_page import TIMEOUT_MS, open_episode, search

from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.run_data import Choice
from gymcp.evaluators.viewer.query import KEYS, ORDERS, QueryError
from gymcp.evaluators.viewer.runs import Runs, open_runs

pytestmark = pytest.mark.xdist_group("viewer")


def open_export(browser: Browser, out: Path, place: str = "index.html", **options: Any) -> Iterator[Page]:
    """A page of an export, offline: it may ask for files below the export only, and must not fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, **options)
    context.set_default_timeout(TIMEOUT_MS)
    context.set_offline(True)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("console", lambda said: wrong.extend([f"console: {said.text}"] if said.type == "error" else []))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
    inside = out.resolve().as_uri() + "/"
    page.on("request", lambda sent: wrong.extend([] if sent.url.startswith(inside) else [f"request: {sent.url}"]))
    page.goto((out.resolve() / place.partition("#")[0]).as_uri() + "".join(place.partition("#")[1:]))
    yield page
    context.close()
    assert wrong == []


QUERIES = (
    'is:failed | is:solved -task05 | needle | NEED | eed | "in episode eighty" | "episode in" | Pay order | [ | _ | a*b'
    " | tag:refund steps=2 | tag:REFUND | tag:ref | tool:pay_order | tool:pay | task:task00* | task:*5 | task=task007"
    " | task:task00[12] | task:task00? | outcome:env_infra | is:unscored | -is:unscored -needle | score<0.5 | score>=1"
    " | -score<1 | steps>1 | seconds>0.5 | trial:1 | version<3 | errors>0 tag:order | why:open | why=order | id:steady"
    ' | group:shop/task1 | task:"" | tag:"" | seed:0 | cost=0 | server died | is:partial | attempt:0 | colour:red'
    " | is:red | steps:many | task>3 | iteration:1 | tokens>=22 | calls=2"
)


def ask_viewer(runs: Runs, query: str, order: str) -> list[int] | str:
    """[number of matches, n of each on the first page], or the error."""
    try:
        found = runs.index.page(0, query, order, 0)
    except QueryError as error:
        return str(error)
    return [found["total"], *(row["n"] for row in found["rows"])]


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export of five runs, one of them broken, moved to another place after it was written."""
    top = tmp_path_factory.mktemp("exported runs")
    write_run(top / "runs" / "a", "steady", paying=100)
    write_run(top / "runs" / "b", "hasty", paying=40)
    write_hostile(top / "runs" / "hostile")
    write_training_run(top / "runs" / "train", iterations=8)
    (top / "runs" / "broken").mkdir()
    (top / "runs" / "broken" / "run.json").write_text("{")
    export_viewer([top / "runs"], top / "made", listed=True, choice=Choice())
    shutil.move(top / "made", top / "moved #1 100%")
    return top / "moved #1 100%"


@pytest.fixture
def page(browser: Browser, out: Path) -> Iterator[Page]:
    for page in open_export(browser, out):
        expect(page.locator(".runtable tbody tr")).to_have_count(5)
        yield page


def test_the_list_leads_to_runs_and_back(page: Page) -> None:
    expect(page.locator("#headline")).to_have_text(re.compile(r"^5 runs · as of 20\d\d-\d\d-\d\d \d\d:\d\d UTC$"))
    expect(page.locator("tr", has_text="steady")).to_contain_text("66.7 %")
    broken = page.locator("tr.broken", has_text="broken")
    expect(broken).to_contain_text("holds no trajectories.sqlite")
    assert broken.locator("a").count() == 0
    page.get_by_role("button", name="success").click()
    page.locator("#search").fill("shop -training hasty")
    expect(page.locator("#found")).to_contain_text("1 run")
    page.locator(".runname").click()
    expect(page.locator("#found")).to_contain_text("241 episodes")
    expect(page.locator("#home")).to_have_text("← runs")  # before, it leads to the beginning of this page
    page.locator("#home").click()
    expect(page.locator("#search")).to_have_value("shop -training hasty")
    expect(page.locator(".runtable tbody tr")).to_have_count(1)


def test_tasks_by_runs_lead_to_the_episodes_of_a_task(page: Page) -> None:
    page.keyboard.press("m")
    expect(page.locator("#found")).to_contain_text("tasks · 4 runs")
    page.locator("#taskfilter").fill("task05")
    expect(page.locator("#cell-0-0")).to_have_text("2/2")
    page.locator("#cell-1-1").click()
    expect(page.locator("#found")).to_contain_text("2 episodes")
    expect(page.locator(".row").first).to_contain_text("task051")
    page.go_back()
    expect(page.locator("#found")).to_contain_text("10 tasks")


def test_suites_by_models_lead_to_runs(page: Page) -> None:
    page.keyboard.press("s")
    expect(page.locator("#found")).to_have_text("2 suites · 3 models · 3 runs")
    page.locator('td[data-label="hasty"] a').click()
    expect(page.locator("#found")).to_contain_text("241 episodes")


def test_two_runs_are_put_side_by_side(page: Page) -> None:
    for name in ("steady", "hasty"):
        page.get_by_role("checkbox", name=f"put {name} side by side").check()
    page.locator("#besides").click()
    expect(page.locator("#found")).to_contain_text("60 pairs")
    page.locator(".row", has_text="task050").click()
    expect(page.locator(".parted")).to_contain_text("Alike for 1 step; in step 1 they call different tools.")
    expect(page.locator(".parting .tool")).to_have_text(["pay_order", "refund_order"])
    page.reload()
    expect(page.locator(".parting .tool")).to_have_text(["pay_order", "refund_order"])
    page.go_back()
    page.go_back()
    for name in ("steady", "pays"):
        page.get_by_role("checkbox", name=f"put {name} side by side").check()


def test_an_episode_shows_all_that_the_viewer_shows(browser: Browser, out: Path) -> None:
    for page in open_export(browser, out, "runs/0/index.html"):
        search(page, "task000 trial:0")
        open_episode(page.locator(".row", has_text="task000"), "task000 trial 0")
        expect(page.locator(".step")).to_have_count(2)
        second = page.locator(".step").nth(1)
        expect(second.locator(".state li")).to_have_count(2)
        expect(second).to_contain_text("advantage -0.500")
        second.locator(".tokens summary").click()
        expect(second.locator(".version")).to_have_text(["v1", "v9"])
        page.locator(".step").first.locator(".anchor").click()
        siblings = page.locator(".sibling")
        expect(siblings).to_have_count(2)
        siblings.nth(1).get_by_role("link").click()
        expect(page.locator("h1")).to_contain_text("trial 1")
        page.locator(".facts summary", has_text="tools on offer").click()
        expect(page.locator(".facts").last).to_contain_text("no tool was on offer")
        address = page.url
        page.reload()
        expect(page.locator("h1")).to_contain_text("trial 1")
        assert page.url == address


def test_the_texts_are_loaded_when_the_search_field_is_entered(browser: Browser, out: Path) -> None:
    for page in open_export(browser, out, "runs/0/index.html"):
        expect(page.locator("#found")).to_contain_text("241 episodes")
        with page.expect_request("**/data/0/words-0.js"):
            page.keyboard.press("/")


def test_search_and_order_give_what_the_viewer_gives(browser: Browser, out: Path) -> None:
    count = 0
    with open_runs([out.parent / "runs" / "a"], follow=False) as runs:
        runs.read_transcripts()
        for page in open_export(browser, out, "runs/0/index.html"):
            expect(page.locator("#found")).to_contain_text("241 episodes")
            for query in ("", "…", "é", "x" * 1001, *QUERIES.split(" | ")):
                for order in ORDERS if query in ("", "is:failed") else ("recorded",):
                    asked = "api/episodes?" + urlencode({"run": 0, "q": query, "sort": order})
                    got = page.evaluate(
                        "path => modules['exported.js'].ask(path).then("
                        "each => [each.total, ...each.rows.map(row => row.n)], error => error.message)",
                        asked,
                    )
                    wanted = ask_viewer(runs, query, order)
                    assert got == wanted, (query, order)
                    count += wanted[0] if isinstance(wanted, list) else 0
            keys = page.evaluate("modules['exported.js'].ask('api/episodes?q=no:1').catch(error => error.message)")
            assert keys == f"no:: no such key; have {', '.join(KEYS)}; in quotes it is looked for as text"
    assert count > 2000


def test_curves_lead_into_iterations(browser: Browser, out: Path) -> None:
    for page in open_export(browser, out, "runs/4/index.html"):
        curves = page.locator(".curve")
        expect(curves).to_have_count(4)
        slider = curves.nth(1).locator("svg")
        slider.focus()
        slider.press("Home")
        slider.press("Enter")
        expect(page.locator("#found")).to_contain_text("4 episodes")


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_a_hostile_run_stays_text_and_fits_the_window(browser: Browser, out: Path, scheme: Any, width: int) -> None:
    for page in open_export(browser, out, "runs/3/index.html", color_scheme=scheme):
        page.set_viewport_size({"width": width, "height": 800})
        expect(page.locator(".row")).to_have_count(2)
        for row, name in enumerate(("<script>alert(1)</script>", "xxxx")):
            if row:
                page.keyboard.press("Escape")
            open_episode(page.locator(".row").nth(row), name)
            page.locator("#detail details").evaluate_all("all => all.forEach(each => { each.open = true })")
            assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
            assert page.locator("#panes img, #panes script, #panes iframe, #panes a[href^=javascript]").count() == 0
        page.locator(".more", has_text="2,000,").first.click()
        expect(page.locator(".more", has_text="less")).to_have_count(1)
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", colour))) < 300) is (scheme == "dark")


def test_a_part_of_a_run_says_what_is_left_out(browser: Browser, out: Path, tmp_path: Path) -> None:
    export_viewer(
        [out.parent / "runs" / "a"], tmp_path / "part", listed=False, choice=Choice(limit=10, find="is:failed")
    )
    for page in open_export(browser, tmp_path / "part", "index.html#q=is:failed"):
        expect(page.locator("#problems")).to_have_text(
            "this export holds 10 of 241 episodes: --find 'is:failed', --limit 10"
        )
        expect(page.locator("#found")).to_contain_text("10 episodes")
        expect(page.locator("#headline")).to_contain_text("66.7 %")
        expect(page.get_by_role("button", name=re.compile("^failed"))).to_have_text("failed 10")
        page.locator(".row").first.click()
        page.locator(".trial:not(.self)").first.click()  # the other trial is solved, so not exported
        expect(page.locator("#detail")).to_contain_text("is not in this export")


def test_a_file_that_is_missing_is_named(browser: Browser, out: Path, tmp_path: Path) -> None:
    shutil.copytree(out, tmp_path / "copy")
    (tmp_path / "copy" / "data" / "0" / "e2.js").write_text("")
    (tmp_path / "copy" / "data" / "0" / "e1.js").write_text("gymcpData('0/e1', '!');")
    for page in open_export(browser, tmp_path / "copy", "runs/0/index.html#n=2"):
        expect(page.locator("#detail")).to_contain_text("e2.js holds no data: export the run again")
        page.locator(".row").first.click()
        expect(page.locator("#detail")).not_to_contain_text("e2.js")
        expect(page.locator("#detail .bad")).to_be_visible()
