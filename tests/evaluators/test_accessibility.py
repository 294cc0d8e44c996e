"""axe-core over the pages of the viewer, an export, reports and the documentation, light and dark, on a screen and on a
phone; and the keyboard alone over all of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
from equipment import lacking
from page_findings import grave_findings
from playwright.sync_api import Browser, Page, expect
from recorded_runs import write_curve_page, write_run, write_training_run
from records import order_episode
from test_export_page import open_export
from test_viewer_page import ViewerAccess, open_episode, open_page, search, wait_for_run_page
from viewer_process import run_viewer
from walk_pages import walk

from gymcp.evaluators.report import read_report, write_report
from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.run_data import Choice
from gymcp.store import TrajectoryStore
from gymcp.store.notes import Note, append_note

pytestmark = pytest.mark.xdist_group("viewer")

SITE = Path(__file__).parents[2] / "site"
"""`make docs` builds it."""
KEYBOARD_PAGE = "command-line.html"
SCREEN, PHONE = 1280, 390
Look = tuple[Literal["light", "dark"], int]
"""Colour scheme, and width in pixels."""
SOME_LOOKS: tuple[Look, ...] = (("light", SCREEN), ("dark", PHONE))
OTHER_LOOKS: tuple[Look, ...] = (("light", PHONE), ("dark", SCREEN))
"""A look takes axe-core a second. So a page has two, and another page with the same parts has the other two."""
REPORTS = {
    "runs/steady/report.html": SOME_LOOKS,
    "runs/train/report.html": OTHER_LOOKS,
    "both.html": OTHER_LOOKS,
    "all.html": SOME_LOOKS,
    "curve.html": SOME_LOOKS,
}
SITE_PAGES = {"index.html": SOME_LOOKS, "evaluation.html": OTHER_LOOKS, "command-line.html": SOME_LOOKS}
"""Pages with the theme's parts, a drawing, tables that scroll, and code of several languages."""
BROKEN_PAGE = """<!doctype html><html lang="en"><title>t</title><style>
@media (prefers-color-scheme: dark) { p { color: #555; background: #444 } }
</style><main><h1>Title</h1><p>Words on a dark ground.</p><ul><li>one</li></ul>
<div style="overflow-x: auto" tabindex="0"><div style="width: 700px">a wide part that scrolls by itself</div></div>
<div id="wide" style="width: 600px; height: 9px"></div></main></html>"""
SEARCH_MS = 120_000
"""Time for the theme to make its index of the whole site, which it does in the page on the first search."""
CONTROLS = "button, input, select, textarea, summary, a[href]:not([tabindex='-1']), [tabindex='0']"
BEGIN = """() => {
  window.reached = new Set();
  document.body.tabIndex = -1;
  document.body.focus();
  document.body.removeAttribute("tabindex");
}"""
"""Makes the next Tab go to the first element of the page."""
FOCUS = """() => {
  const each = document.activeElement;
  window.reached.add(each);
  const shown = each.matches(".md-option") ? each.nextElementSibling : each;  // the theme hides it, and draws its label
  const box = shown.getBoundingClientRect();
  const style = getComputedStyle(shown);
  const drawn = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) > 0;
  const caret = each.matches(".md-search__input");
  const marked = each.matches("#list, #grid, #detail, #table, .row") || each.closest("#list, #grid") !== null;
  const inside = box.right > 0 && box.left < innerWidth;
  const name = `${each.tagName} ${each.id} ${each.className} ${each.textContent.slice(0, 30)}`;
  const place = `${box.left} ${box.top}`;
  return { name, place, end: each === document.body, seen: inside && (drawn || caret || marked) };
}"""
"""The element that has the focus, and whether it can be seen that it has."""
MISSED = """each => each
  .filter(each => each.checkVisibility({ visibilityProperty: true, opacityProperty: true }))
  .filter(each => !each.disabled && !window.reached.has(each))
  .map(each => each.outerHTML.slice(0, 120))"""
"""The controls that can be seen and have never had the focus."""


def findings_by_page(page: Page, walked: Iterable[str], looks: Sequence[Look]) -> dict[str, list[str]]:
    """Grave findings of each page of a walk in each of these looks, by the page's name; empty without any.

    The walk itself goes on at the width of a screen.
    """
    found = {}
    for name in walked:
        for scheme, width in looks:
            page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # no mixture of two colours
            page.set_viewport_size({"width": width, "height": 800})
            found[f"{name}, {scheme}, {width} px"] = grave_findings(page)
        page.set_viewport_size({"width": SCREEN, "height": 800})
    return {name: each for name, each in found.items() if each}


@pytest.fixture(scope="module")
def top(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of a suite with notes, one judged, a training run and a broken one; their reports, and an export."""
    top = tmp_path_factory.mktemp("pages")
    for name, paying in (("steady", 4), ("hasty", 1)):
        run = write_run(top / "runs" / name, name, paying=paying, tasks=5)
        with TrajectoryStore.open(run, write=True) as store:
            components = {"judge.polite": 1.0, "judge.verdicts": 1.0}
            text = "**bold** `code`\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n> quote [link](https://x.invalid)"
            store.append(order_episode("judged", 0, pays=True, run=name, words=text, components=components), {})
        append_note(
            run, Note(episode=f"{name}-task004-0", who="bob", note="odd", labels=("x",), verdict="pass"), seen=""
        )
        append_note(
            run, Note(episode=f"{name}-judged-0", who="bob", note="odd", labels=("x",), verdict="fail"), seen=""
        )
    write_training_run(top / "runs" / "train", iterations=8)
    (top / "runs" / "broken").mkdir()
    (top / "runs" / "broken" / "run.json").write_text("{")
    runs = [top / "runs" / name for name in ("steady", "hasty", "train")]
    for run in runs:
        write_report(run)
    (top / "both.html").write_text(read_report(runs[:2], lambda run: {}).text("html"))
    (top / "all.html").write_text(read_report(runs, lambda run: {}).text("html"))
    write_curve_page(top / "curve.html")
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
    wait_for_run_page(page)
    yield "run"
    search(page, "task:judged")
    open_episode(page.locator(".row", has_text="judged"), "judged")
    expect(page.locator(".note")).to_be_visible()
    page.locator("#detail details").evaluate_all("all => all.forEach(each => { each.open = true })")
    expect(page.locator(".taskfacts details > div")).to_have_count(2)  # the parts that unfolding asks for have come
    expect(page.locator(".taskfacts .soft").get_by_text("…", exact=True)).to_have_count(0)
    yield "episode"
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    yield "keys"
    page.goto(home + pair + "#view=pairs")
    page.locator(".row", has_text="task003").first.click()
    expect(page.locator(".parted")).to_be_visible()
    yield "side by side"
    page.goto(home + run.format(3))
    wait_for_run_page(page)
    expect(page.locator(".curve").first).to_be_visible()
    yield "training run"


def test_the_viewer_has_no_grave_findings(browser: Browser, viewer: ViewerAccess) -> None:
    for page in open_page(browser, viewer):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        walked = walk_viewer(page, viewer.url, "runs/{}/", "runs/1-2/")
        assert findings_by_page(page, walked, SOME_LOOKS) == {}


def test_an_export_has_no_grave_findings(browser: Browser, top: Path) -> None:
    """An export has the pages of the viewer, which has the other looks."""
    home = (top / "out").as_uri() + "/"
    for page in open_export(browser, top / "out"):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        walked = walk_viewer(page, home, "runs/{}/index.html", "runs/1-2/index.html")
        assert findings_by_page(page, walked, OTHER_LOOKS) == {}


def test_reports_have_no_grave_findings(browser: Browser, top: Path) -> None:
    found: dict[str, list[str]] = {}
    for place, looks in REPORTS.items():
        for page in open_export(browser, top, place):
            page.locator("details").evaluate_all("all => all.forEach(each => { each.open = true })")
            found |= findings_by_page(page, [place], looks)
    assert found == {}


@pytest.fixture(scope="module")
def site() -> Path:
    if not (SITE / "index.html").is_file():
        lacking("site", "there is no site/index.html: make docs")
    return SITE


def test_the_documentation_has_no_grave_findings(browser: Browser, site: Path) -> None:
    """A page is opened in its scheme: its colours change slowly, and a mixture of two has little contrast."""
    found: dict[str, list[str]] = {}
    for place, looks in SITE_PAGES.items():
        for look in looks:
            for page in open_export(browser, site, place, color_scheme=look[0]):
                expect(page.locator("h1")).to_be_visible()
                found |= findings_by_page(page, [place], [look])
    assert found == {}


def test_a_defect_of_a_page_is_found_in_the_look_that_has_it(browser: Browser, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(BROKEN_PAGE)
    found = {
        where: [each.partition(":")[0] for each in all]
        for where, all in walk(browser, tmp_path, [tmp_path / "page.html"])
    }
    assert found == {
        "page.html, light, 1280 px": [],
        "page.html, light, 390 px": ["scrolls sideways", "scrolls sideways"],  # the image, and the page; not the table
        "page.html, dark, 1280 px": ["color-contrast"],
        "page.html, dark, 390 px": ["scrolls sideways", "scrolls sideways", "color-contrast"],
    }


def check_tab_order(page: Page, name: str) -> None:
    """Tab through a page from its beginning: the focus is always seen, and no control is left out."""
    page.evaluate(BEGIN)
    found: list[dict[str, Any]] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUS)
        if now["end"] or (len(found) > 3 and now == found[0]):
            break
        found.append(now)
    else:
        raise AssertionError(f"{name}: the focus does not leave: {found[-3:]}")
    assert [each["name"] for each in found if not each["seen"]] == [], name
    assert page.locator(CONTROLS).evaluate_all(MISSED) == [], name


def check_disclosure(page: Page, parts: str) -> None:
    """Open and close the first `details` among these parts of the page."""
    first = page.locator(parts).first
    shut = first.evaluate("each => !each.open")
    first.locator("summary").first.focus()
    for key in ("Enter", "Space"):
        page.keyboard.press(key)
        expect(first, f"{parts}, {key}").to_have_js_property("open", shut)
        shut = not shut


def test_the_keyboard_reaches_everything_in_the_viewer(browser: Browser, viewer: ViewerAccess) -> None:
    for page in open_page(browser, viewer):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        for name in walk_viewer(page, viewer.url, "runs/{}/", "runs/1-2/"):
            if name == "keys":
                page.keyboard.press("Escape")
            else:
                check_tab_order(page, name)


def test_an_export_is_read_with_the_keyboard_alone(browser: Browser, top: Path) -> None:
    for page in open_export(browser, top / "out"):
        expect(page.locator(".runtable tbody tr")).to_have_count(4)
        check_tab_order(page, "list")
        page.locator("#runs button", has_text="tasks").focus()
        page.keyboard.press("Enter")
        expect(page.locator("#cell-0-0")).to_be_visible()
        check_tab_order(page, "tasks x runs")
        page.locator("#runs button", has_text=re.compile("^runs$")).focus()
        page.keyboard.press("Space")
        page.keyboard.press("/")
        page.keyboard.type("steady")
        expect(page.locator("#found")).to_contain_text("1 run")
        page.keyboard.press("Enter")
        page.keyboard.press("Enter")
        wait_for_run_page(page)
        check_tab_order(page, "run")
        page.locator("#list").focus()
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page.locator(".step").first).to_be_visible()
        check_tab_order(page, "episode")
        check_disclosure(page, "#detail details")


def test_a_report_is_read_with_the_keyboard_alone(browser: Browser, top: Path) -> None:
    for place in ("runs/steady/report.html", "runs/train/report.html", "all.html"):
        for page in open_export(browser, top, place):
            check_tab_order(page, place)
            check_disclosure(page, "details:not(.fold)")  # one that all screens fold
            page.locator("a[href^='#']").first.focus()
            page.keyboard.press("Enter")
            expect(page).to_have_url(re.compile("#"))


def test_the_documentation_is_read_with_the_keyboard_alone(browser: Browser, site: Path) -> None:
    for page in open_export(browser, site, KEYBOARD_PAGE, color_scheme="dark"):
        expect(page.locator("h1")).to_be_visible()
        check_tab_order(page, "screen")
        page.locator(".md-option:checked").focus()
        page.keyboard.press("Enter")
        expect(page.locator("body")).to_have_attribute("data-md-color-scheme", "default")
        page.set_viewport_size({"width": PHONE, "height": 800})
        expect(page.locator(".md-sidebar--primary .md-logo")).to_be_hidden()  # the drawer shuts slowly
        check_tab_order(page, "phone")
        drawer = page.locator("label.md-header__button[for='__drawer']")
        drawer.focus()
        page.keyboard.press("Enter")
        expect(page.locator("#__drawer")).to_be_checked()
        expect(page.locator(".md-sidebar--primary .md-logo")).to_be_in_viewport(ratio=1)  # and opens slowly
        check_tab_order(page, "drawer")
        page.keyboard.press("/")
        expect(page.locator(".md-search__input")).to_be_focused()
        # The theme searches after each key, and a new result takes the focus: so only one key, after the whole word. It
        # also moves the caret when the field gets the focus: so a key that writes nothing.
        page.keyboard.insert_text("cassette")
        page.keyboard.press("End")
        expect(page.locator(".md-search-result__link").first).to_be_visible(timeout=SEARCH_MS)
        page.keyboard.press("ArrowDown")
        page.keyboard.press("Enter")
        expect(page).not_to_have_url(re.compile(re.escape(KEYBOARD_PAGE)))
