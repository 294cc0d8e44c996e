"""Names in the viewer: told apart on a phone, whole where they fit, turns counted as the reasons count them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect
from records import order_episode
from test_viewer_page import ViewerAccess, enter, open_page
from viewer_process import run_viewer

from gymcp.outcome import Outcome
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import RequestTimes, Usage

pytestmark = pytest.mark.xdist_group("viewer")
PHONE: ViewportSize = {"width": 390, "height": 800}
TASKS = ("multi_turn_long_context_120", "multi_turn_long_context_160", "multi_turn_base_120")
IN_SIGHT = """(shown) => {
  const box = shown.closest(".task, .head").getBoundingClientRect();
  const end = shown.querySelector(".cut > :last-child").getBoundingClientRect();
  return end.width > 0 && end.right <= box.right + 1 && end.left >= box.left;
}"""
"""True if the last part of a shortened name lies inside its box."""
ON_ONE_LINE = """(shown) => {
  const text = document.createRange();
  text.selectNodeContents(shown);
  return new Set([...text.getClientRects()].map((each) => Math.round(each.top))).size === 1;
}"""


def write_scripted(folder: Path, agent: str) -> Path:
    """A run of an agent without a model, whose episodes have no reason."""
    config = {"env": "backoffice", "suite": "backoffice", "agent": agent}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        for task in TASKS:
            usage = Usage(tool_calls=2, wall_s=0.6, agent_s=0.4)
            store.append(order_episode(task, 0, pays=True, run=agent, reason="", usage=usage), {}, tags=("refund",))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("names")
    for agent in ("oracle", "random"):
        write_scripted(folder / f"seeds-level-1-{agent}", agent)
    config = {"env": "backoffice", "suite": "backoffice", "agent": "react", "policy": "tiny"}
    with create_run(folder / "tiny", config), TrajectoryStore.open(folder / "tiny", write=True) as store:
        one = order_episode(TASKS[0], 0, pays=True, run="tiny", outcome=Outcome.BUDGET_EXHAUSTED)
        timed = replace(one.steps[0], request_times=RequestTimes(request_s=0.25, first_token_s=0.2))
        store.append(replace(one, steps=(timed, *one.steps[1:])), {})  # adds columns to the list
    return folder


@pytest.fixture(scope="module")
def both(browser: Browser, folder: Path) -> Iterator[ViewerAccess]:
    with run_viewer(*sorted(folder.glob("seeds-*"))) as address:
        yield enter(browser, address)


@pytest.fixture
def runs(browser: Browser, folder: Path) -> Iterator[Page]:
    with run_viewer(folder) as address:
        for page in open_page(browser, enter(browser, address)):
            expect(page.locator(".runtable tbody tr")).to_have_count(3)
            yield page


def test_tasks_by_runs_shows_the_ends_of_names_on_a_phone_and_the_list_breaks_none(runs: Page) -> None:
    suites = runs.locator("td[data-label='suite'] bdi")
    expect(suites).to_have_text(["backoffice"] * 3)
    expect(runs.locator("td[data-label='first token p50'] [title]").first).to_have_text("0.20 s")
    for width in (1000, 1280):
        runs.set_viewport_size({"width": width, "height": 800})
        assert [each.evaluate(ON_ONE_LINE) for each in suites.all()] == [True] * 3
    expect(runs.locator("td[data-label='decision p50']").filter(has_text="–")).to_have_count(2)
    runs.set_viewport_size(PHONE)
    runs.keyboard.press("m")
    names = runs.locator(".task > bdi, .head > bdi")
    expect(names).to_have_text(["oracle", "random", "tiny", *sorted(TASKS)])
    assert [each.evaluate(IN_SIGHT) for each in names.all()] == [True] * 6
    below = runs.locator(".head .fine > bdi")  # names of folders of agents without a model
    expect(below).to_have_text(["seeds-level-1-oracle", "seeds-level-1-random", "react"])
    assert [each.evaluate(IN_SIGHT) for each in below.all()] == [True] * 3
    ends = runs.locator(".task .cut > :last-child").all_inner_texts()
    assert len(set(ends)) == 3


def test_tabs_of_a_pair_show_in_what_the_two_differ_on_a_phone(browser: Browser, both: ViewerAccess) -> None:
    for page in open_page(browser, both):
        tabs = page.locator("#runs button")
        expect(tabs).to_have_text(["Abackoffice · oracle", "Bbackoffice · random", "side by side"])
        page.set_viewport_size(PHONE)
        expect(tabs.nth(0).locator(".tabname")).to_have_text("oracle", use_inner_text=True)
        expect(tabs.nth(1).locator(".tabname")).to_have_text("random", use_inner_text=True)
        cut = "all => all.map(each => each.scrollWidth - each.clientWidth)"
        assert page.locator(".tabname").evaluate_all(cut) == [0, 0]


def test_a_row_without_a_reason_ends_without_a_dot(browser: Browser, both: ViewerAccess) -> None:
    for page in open_page(browser, both):
        expect(page.locator(".row")).to_have_count(3)
        for last in page.locator(".row .about > :last-child").all():
            expect(last).not_to_be_empty()
