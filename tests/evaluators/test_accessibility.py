"""axe-core over the pages of the viewer, an export, reports and the documentation, light and dark, on a screen and on a
phone; and the keyboard alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from equipment import lacking
from playwright.sync_api import Browser, Page, expect
from recorded_runs import write_run, write_training_run
from records import order_episode
from test_export_page import open_export
from test_viewer_page import ViewerAccess, browser, open_page
from viewer_process import run_viewer

from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.run_data import Choice
from gymcp.store import TrajectoryStore
from gymcp.store.notes import Note, append_note

__all__ = ["browser"]  # the fixture

pytestmark = pytest.mark.xdist_group("viewer")

AXE = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
GRAVE = ("serious", "critical")
SITE = Path(__file__).parents[2] / "site"
"""`make docs` builds it."""
SITE_PAGES = ("index.html", "evaluation.html", "command-line.html")
"""Pages with the theme's parts, a drawing, tables that scroll, and code of several languages."""
SCREEN, PHONE = 1280, 390
FOCUS = """() => {
  const each = document.activeElement;
  const box = each.getBoundingClientRect();
  const style = getComputedStyle(each);
  const drawn = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const marked = each.matches("#list, #grid, #detail, #table, .row") || each.closest("#list, #grid") !== null;
  const name = `${each.tagName} ${each.id} ${each.className} ${each.textContent.slice(0, 30)}`;
  const place = `${box.left} ${box.top}`;
  return { name, place, end: each === document.body, seen: drawn || marked };
}"""
"""The element that has the focus, and whether it can be seen that it has."""


def grave_findings(page: Page) -> list[str]:
    """Serious and critical findings of axe-core, each with the first elements that it names."""
    page.evaluate(AXE)
    found: dict[str, Any] = page.evaluate("axe.run(document, { resultTypes: ['violations'], preload: false })")
    assert len(found["passes"]) > 5, "axe-core has looked at the page"
    return [
        f"{each['id']}: {each['help']}: {[(node['target'], node['failureSummary']) for node in each['nodes'][:4]]}"
        for each in found["violations"]
        if each["impact"] in GRAVE
    ]


def findings_by_page(page: Page, walked: Iterable[str], *, width: int) -> dict[str, list[str]]:
    """Grave findings of each page of a walk at this width, by the page's name; empty without any.

    The walk itself goes on at the width of a screen.
    """
    found = {}
    for name in walked:
        page.set_viewport_size({"width": width, "height": 800})
        found[name] = grave_findings(page)
        page.set_viewport_size({"width": SCREEN, "height": 800})
    return {name: each for name, each in found.items() if each}


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a suite with notes, one of them judged, a training run, and a broken one; with their reports."""
    top = tmp_path_factory.mktemp("pages")
    for name, paying in (("steady", 8), ("hasty", 3)):
        run = write_run(top / "runs" / name, name, paying=paying, tasks=12)
        with TrajectoryStore.open(run, write=True) as store:
            components = {"judge.polite": 1.0, "judge.verdicts": 1.0}
            text = "**bold** `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote [link](https://x.invalid)"
            store.append(order_episode("judged", 0, pays=True, run=name, words=text, components=components), {})
        append_note(
            run, Note(episode=f"{name}-task009-0", who="bob", note="odd", labels=("x",), verdict="pass"), seen=""
        )
        append_note(
            run, Note(episode=f"{name}-judged-0", who="bob", note="odd", labels=("x",), verdict="fail"), seen=""
        )
    write_training_run(top / "runs" / "train", iterations=8)
    (top / "runs" / "broken").mkdir()
    (top / "runs" / "broken" / "run.json").write_text("{")
    export_viewer([top / "runs"], top / "out", listed=True, choice=Choice())
    return top


@pytest.fixture(scope="module")
def viewer(browser: Browser, top: Path) -> Iterator[ViewerAccess]:
    with run_viewer(top / "runs") as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#headline")).to_have_text("4 runs")
        found = ViewerAccess(url=page.url, cookie=context.storage_state())
        context.close()
        yield found


def walk_viewer(page: Page, home: str, run: str, pair: str) -> Iterator[str]:
    """Go through the pages of a viewer, or of an export; the name of each, once it is whole."""
    yield "list"
    page.keyboard.press("s")
    expect(page.locator(".entry").first).to_be_visible()
    yield "suites x models"
    page.keyboard.press("m")
    expect(page.locator("#cell-0-0")).to_be_visible()
    yield "tasks x runs"
    page.goto(home + run.format(1))
    expect(page.locator(".row").first).to_be_visible()
    expect(page.locator(".config")).to_be_visible()
    yield "run"
    page.locator("#search").fill("task:judged")
    page.locator(".row", has_text="judged").click()
    expect(page.locator(".note")).to_be_visible()
    page.locator("#detail details").evaluate_all("all => all.forEach(each => { each.open = true })")
    yield "episode"
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    yield "keys"
    page.goto(home + pair + "#view=pairs")
    page.locator(".row", has_text="task003").first.click()
    expect(page.locator(".parted")).to_be_visible()
    yield "side by side"
    page.goto(home + run.format(3))
    expect(page.locator(".curve").first).to_be_visible()
    yield "training run"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_viewer_has_no_grave_findings(browser: Browser, viewer: ViewerAccess, scheme: Any) -> None:
    for page in open_page(browser, viewer, color_scheme=scheme):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        walked = walk_viewer(page, viewer.url, "runs/{}/", "runs/1-2/")
        assert findings_by_page(page, walked, width=SCREEN) == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_an_export_has_no_grave_findings(browser: Browser, top: Path, scheme: Any) -> None:
    """Its pages are those of the viewer, which are looked at on a phone here."""
    home = (top / "out").as_uri() + "/"
    for page in open_export(browser, top / "out", color_scheme=scheme):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        walked = walk_viewer(page, home, "runs/{}/index.html", "runs/1-2/index.html")
        assert findings_by_page(page, walked, width=PHONE) == {}


@pytest.mark.parametrize(("scheme", "width"), [("light", SCREEN), ("dark", PHONE)])
def test_reports_have_no_grave_findings(browser: Browser, top: Path, scheme: Any, width: int) -> None:
    runs = [top / "runs" / name for name in ("steady", "hasty", "train")]
    for run in runs:
        write_report(run)
    (top / "both.html").write_text(read_report(runs[:2], lambda run: {}).text("html"))
    (top / "all.html").write_text(read_report(runs, lambda run: {}).text("html"))
    found: dict[str, list[str]] = {}
    for place in ("runs/steady/report.html", "runs/train/report.html", "both.html", "all.html"):
        for page in open_export(browser, top, place, color_scheme=scheme):
            page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true })")
            found |= findings_by_page(page, [place], width=width)
    assert found == {}


@pytest.mark.parametrize(("scheme", "width"), [("light", SCREEN), ("dark", PHONE)])
def test_the_documentation_has_no_grave_findings(browser: Browser, scheme: Any, width: int) -> None:
    if not (SITE / "index.html").is_file():
        lacking("site", "there is no site/index.html: make docs")
    found: dict[str, list[str]] = {}
    for place in SITE_PAGES:
        for page in open_export(browser, SITE, place, color_scheme=scheme):
            expect(page.locator("h1")).to_be_visible()
            found |= findings_by_page(page, [place], width=width)
    assert found == {}


def tab_through(page: Page) -> list[dict[str, Any]]:
    """The elements that have the focus one after the other, until it leaves the page or comes round."""
    page.locator("#home").focus()
    found: list[dict[str, Any]] = []
    for _ in range(300):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUS)
        if now["end"] or (len(found) > 3 and now == found[0]):
            return found
        found.append(now)
    raise AssertionError(f"the focus does not leave: {found[-3:]}")


def test_the_keyboard_reaches_everything_and_the_focus_is_seen(browser: Browser, viewer: ViewerAccess) -> None:
    for page in open_page(browser, viewer):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        for name in walk_viewer(page, viewer.url, "runs/{}/", "runs/1-2/"):
            if name == "keys":
                page.keyboard.press("Escape")
                continue
            reached = tab_through(page)
            assert [each["name"] for each in reached if not each["seen"]] == [], name
            tags = "button:not([hidden]):not(:disabled), input, select, textarea, summary"
            wanted = page.locator(tags).evaluate_all("all => all.filter(each => each.checkVisibility()).length")
            got = [each for each in reached if each["name"].split()[0] in
                   ("BUTTON", "INPUT", "SELECT", "TEXTAREA", "SUMMARY")]  # fmt: skip
            assert len(got) >= wanted, (name, wanted, "\n".join(each["name"] for each in reached))
