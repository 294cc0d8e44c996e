"""Reports in a real browser: light, dark, on a phone, with the keyboard alone."""

from __future__ import annotations

import base64
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect
from recorded_runs import write_curve_page
from records import order_episode
from test_training_report import ROWS, evaluation_row, no_tasks, write_training

from gymcp.evaluators.report import read_report, write_report
from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.store.heldout import HeldoutResult

pytestmark = pytest.mark.xdist_group("viewer")
TIMEOUT_MS = 60_000
READ_PIXELS = """async (picture) => {
  const bitmap = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
  canvas.drawImage(bitmap, 0, 0);
  const row = canvas.getImageData(0, Math.floor(bitmap.height * 0.36), bitmap.width, 1).data;
  return Array.from({ length: bitmap.width }, (_, at) => [...row.slice(4 * at, 4 * at + 3)]);
}"""
"""Colours of a row of pixels just above the line of an interval, which only its band and its mean reach."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with long reasons and names, a training run, a report on both and another suite, and the demo's curves."""
    folder = tmp_path_factory.mktemp("pages")
    long = "turn 2 of 3: GorillaFileSystem.root.contents differs: expected {}, found {}; " * 6
    for suite in ("bfcl", "tau2"):
        config = {"env": suite, "suite": suite, "agent": "react", "policy": f"openai:http://h/v1#{suite}-model"}
        with create_run(folder / suite, config), TrajectoryStore.open(folder / suite, write=True) as store:
            for n in range(24):
                one = order_episode(f"multi_turn_miss_func_{n}", 0, pays=n < 9, run=suite, reason=long)
                one = replace(one, outcome=Outcome.BUDGET_EXHAUSTED if n > 20 else Outcome.SCORED)
                store.append(one, {}, tags=(f"GorillaFileSystem{n % 3}", f"level {n % 2}"))
        write_report(folder / suite)
    write_report(write_training(folder / "training", [*ROWS[:2], {**ROWS[2], **{f"column{n}": n for n in range(30)}}]))
    runs = [folder / name for name in ("bfcl", "tau2", "training")]
    (folder / "report.html").write_text(read_report(runs, no_tasks).text("html"))
    write_curve_page(folder / "curve.html")
    return folder


PAGES = ("bfcl/report.html", "training/report.html", "report.html", "curve.html")


def open_report(browser: Browser, file: Path, **options: Any) -> Page:
    """The page, which may send no request; its context must be closed."""
    context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    page.goto(file.as_uri())
    return page


def luminance(colour: list[int]) -> float:
    """Relative luminance (WCAG 2) of a colour in sRGB."""
    parts = [each / 255 for each in colour]
    red, green, blue = (each / 12.92 if each <= 0.03928 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: list[int], other: list[int]) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_band_of_an_interval_can_be_seen(browser: Browser, folder: Path, scheme: Any) -> None:
    page = open_report(browser, folder / "bfcl/report.html", color_scheme=scheme)
    bar = page.locator(".headline svg.interval")
    low, width = (float(bar.locator(".band").get_attribute(name) or "") for name in ("x", "width"))
    picture = base64.b64encode(bar.screenshot()).decode()
    blank = page.context.new_page()
    row: list[list[int]] = blank.evaluate(READ_PIXELS, picture)
    page.context.close()
    band = row[round(len(row) * (low + 0.15 * width) / 100)]
    paper = row[round(len(row) * (low + width + 10) / 100)]
    mean = max(row, key=lambda each: contrast(each, paper))
    assert contrast(band, paper) > 2
    assert contrast(mean, band) > 2


@pytest.mark.parametrize("name", PAGES)
def test_a_report_fits_a_phone_and_its_rows_are_not_blank(browser: Browser, folder: Path, name: str) -> None:
    page = open_report(browser, folder / name, viewport={"width": 390, "height": 844})
    wide, height = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.scrollHeight]")
    cut = page.evaluate(
        "[...document.querySelectorAll('main td, main th, .panel, .facts div, svg')].filter(each => {"
        " const box = each.getBoundingClientRect(); return box.width && box.right > innerWidth; }).length"
    )
    tallest = page.evaluate(
        "Math.max(...[...document.querySelectorAll('tbody tr')].map(row => {"
        " const text = document.createRange(); text.selectNodeContents(row);"
        " return row.getBoundingClientRect().height - text.getBoundingClientRect().height; }))"
    )
    page.context.close()
    assert (wide, cut) == (390, 0)
    assert tallest < 40
    assert height < 12_000


@pytest.fixture(scope="module")
def long_pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of 20 failed tasks that called 60 tools, and a training of 54 columns with a recipe of 80 settings."""
    folder = tmp_path_factory.mktemp("long")
    tools = {f"get_current_speed_of_{n}": {"calls": n, "seconds": 0.1 * n, "errors": n // 2} for n in range(1, 61)}
    reason = "turn 1 of 4: GorillaFileSystem.root.document.final_report.pdf should not be there"
    with (
        create_run(folder / "tools", {"env": "bfcl", "suite": "bfcl", "agent": "random", "limit": 20}),
        TrajectoryStore.open(folder / "tools", write=True) as store,
    ):
        for n in range(20):
            one = order_episode(f"multi_turn_long_context_{n}", 0, pays=False, run="tools", reason=reason)
            store.append(replace(one, usage=replace(one.usage, tools=tools)), {}, tags=("base", "GorillaFileSystem"))
    write_report(folder / "tools")
    groups = ("anchor", "cost", "outcome", "seconds", "test/seeds/cost", "test/seeds/component")
    columns = {f"{group}/{n}": float(n) for group in groups for n in range(6)} | {f"own{n}": n / 7 for n in range(18)}
    recipe = {f"section{n}": {f"setting_{m}": m for m in range(10)} for n in range(8)}
    rows = [evaluation_row(0, 13, tasks=96), {**evaluation_row(2, 96, tasks=96, success=0.5), **columns}]
    results = [
        HeldoutResult(iteration=at, split="seeds", success={f"task{n}": n < solved for n in range(96)})
        for at, solved in ((0, 13), (2, 96))
    ]
    write_report(write_training(folder / "columns", rows, results, **recipe))
    return folder


FOLDED = {
    "tools": ["show 60 rows", "show 20 rows", "show 10 rows"],
    "columns": ["show 40 more charts", "show 85 settings"],
}
"""Summaries of what a phone folds, in the order of the page."""


@pytest.mark.parametrize("name", FOLDED)
def test_a_phone_folds_long_tables_and_charts_until_they_are_asked_for(
    browser: Browser, long_pages: Path, name: str
) -> None:
    page = open_report(browser, long_pages / name / "report.html", viewport={"width": 390, "height": 844})
    height = page.evaluate("document.documentElement.scrollHeight")
    folds = page.locator("details.fold")
    words = folds.locator("> summary").all_inner_texts()
    hidden = [fold.locator("table, figure, dl").first.is_hidden() for fold in folds.all()]
    folds.first.locator("> summary").press("Enter")
    expect(folds.first.locator("table, figure, dl").first).to_be_visible()
    page.context.close()
    assert words == FOLDED[name]
    assert hidden == [True] * len(words)
    assert height < 8_000


@pytest.mark.parametrize("look", ["wide", "print"])
@pytest.mark.parametrize("name", FOLDED)
def test_nothing_is_folded_on_a_wide_screen_and_on_paper(
    browser: Browser, long_pages: Path, name: str, look: str
) -> None:
    width = 1280 if look == "wide" else 390
    page = open_report(browser, long_pages / name / "report.html", viewport={"width": width, "height": 844})
    if look == "print":
        page.emulate_media(media="print")
    folds = page.locator("details.fold")
    shown = [fold.locator("table, figure, dl").first.is_visible() for fold in folds.all()]
    summaries = [fold.locator("> summary").is_visible() for fold in folds.all()]
    page.context.close()
    assert shown == [True] * len(FOLDED[name])
    assert not any(summaries)


@pytest.mark.parametrize("width", [390, 1000, 1400])
def test_no_outcome_is_broken_inside_its_name(browser: Browser, folder: Path, width: int) -> None:
    page = open_report(browser, folder / "bfcl/report.html", viewport={"width": width, "height": 900})
    lines = page.evaluate(
        "[...document.querySelectorAll('code')].filter(each => each.textContent === 'budget_exhausted')"
        ".map(each => each.getClientRects().length)"
    )
    page.context.close()
    assert set(lines) == {1}


BROKEN_AT = """([selector, pattern, from, to]) => {
  for (const each of document.querySelectorAll("details")) each.open = true;
  const broken = [];
  for (const shown of document.querySelectorAll(selector)) {
    const texts = document.createTreeWalker(shown, NodeFilter.SHOW_TEXT);
    for (let text = texts.nextNode(); text; text = texts.nextNode()) {
      for (const found of text.data.matchAll(new RegExp(pattern, "g"))) {
        const range = document.createRange();
        range.setStart(text, found.index);
        range.setEnd(text, found.index + found[0].length);
        for (let width = from; width <= to; width += 10) {
          document.querySelector("main").style.width = `${width}px`;
          if (range.getClientRects().length > 1) broken.push([found[0], width]);
        }
      }
    }
  }
  return broken;
}"""
"""Texts of the elements that match the pattern and stand on more than one line, each with the width of the page."""


@pytest.mark.parametrize(
    ("selector", "pattern"),
    [
        ("td > code, td > a > code", r"multi_turn_long_context_\d+"),
        (".change", r"5e-05"),
        (".gates code", "--[a-z]+"),
    ],
)
def test_a_name_a_figure_or_an_option_that_fits_is_not_broken(
    browser: Browser, long_pages: Path, selector: str, pattern: str
) -> None:
    broken = []
    for name in ("tools", "columns"):
        for low, high in ((300, 390), (760, 1280)):
            page = open_report(browser, long_pages / name / "report.html", viewport={"width": high, "height": 844})
            broken += page.evaluate(BROKEN_AT, [selector, pattern, low, high])
            page.context.close()
    assert broken == []


def test_a_square_of_a_legend_stands_on_the_line_of_its_label(browser: Browser, long_pages: Path) -> None:
    apart = []
    for name in ("tools", "columns"):
        page = open_report(browser, long_pages / name / "report.html", viewport={"width": 390, "height": 844})
        apart += page.evaluate(
            """() => Array.from({ length: 30 }, (_, n) => 250 + 5 * n).flatMap((width) => {
              document.querySelector("main").style.width = `${width}px`;
              return [...document.querySelectorAll(".key span")].filter((each) => {
                const label = document.createRange();
                label.selectNodeContents(each.lastChild);
                return label.getClientRects()[0].left < each.firstChild.getBoundingClientRect().right;
              }).map((each) => [each.textContent, width]);
            })"""
        )
        page.context.close()
    assert apart == []


def test_a_table_stays_a_table_for_a_screen_reader_on_a_phone(browser: Browser, folder: Path) -> None:
    page = open_report(browser, folder / "bfcl/report.html", viewport={"width": 390, "height": 844})
    table = page.get_by_role("table").first
    assert table.get_by_role("columnheader").count() >= 2
    assert table.get_by_role("row").count() > 1
    page.context.close()


def test_a_figure_of_the_matrix_leads_to_its_run_with_the_keyboard_alone(browser: Browser, folder: Path) -> None:
    page = open_report(browser, folder / "report.html")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("#run-"))
    expect(page.locator(":target")).to_be_in_viewport()
    page.context.close()


def test_a_page_is_printed_in_light_colours(browser: Browser, folder: Path) -> None:
    page = open_report(browser, folder / "bfcl/report.html", color_scheme="dark")
    page.emulate_media(media="print")
    colour = page.evaluate("getComputedStyle(document.body).color.match(/\\d+/g).map(Number)")
    page.context.close()
    assert luminance(colour) < 0.1
