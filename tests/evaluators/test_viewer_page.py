"""The viewer in a real browser: the page, its keys, and hostile runs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from recorded_runs import write_hostile, write_run, write_training_run
from records import HOSTILE_TEXT, order_episode
from viewer_process import run_viewer

from gymcp.cli.runs.view import private_page
from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Message, Observation

pytestmark = pytest.mark.xdist_group("viewer")
TIMEOUT_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewerAccess:
    """A viewer with one browser let in: the address of its first page, and the cookie for it."""

    url: str
    cookie: Any


def enter(browser: Browser, address: str) -> ViewerAccess:
    """Open the address, which works once; every page of a test belongs to the same browser."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(address)
    expect(page.locator("#search")).to_be_visible()
    found = ViewerAccess(url=page.url, cookie=context.storage_state())
    context.close()
    return found


@pytest.fixture(scope="module")
def two(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerAccess]:
    folder = tmp_path_factory.mktemp("two")
    one, other = write_run(folder / "a", "steady", paying=100), write_run(folder / "b", "hasty", paying=40)
    with run_viewer(one, other) as address:
        yield enter(browser, address)


@pytest.fixture
def page(browser: Browser, two: ViewerAccess) -> Iterator[Page]:
    yield from open_page(browser, two)


def open_page(browser: Browser, access: ViewerAccess, **options: Any) -> Iterator[Page]:
    """A page that may send requests to the viewer only, and must not fail."""
    context = browser.new_context(viewport={"width": 1280, "height": 800}, storage_state=access.cookie, **options)
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))

    def elsewhere(route: Route) -> None:
        wrong.append(f"request: {route.request.url}")
        route.abort()

    page.route(re.compile(r"^(?!http://127\.0\.0\.1:)"), elsewhere)
    page.goto(access.url)
    yield page
    context.close()
    assert wrong == []


def wait_for_run_page(page: Page) -> None:
    """Wait until a run's page is whole: its bar and overview come beside its list, and each may be the last."""
    expect(page.locator("#detail h1")).to_be_attached()  # on a telephone it is behind the list
    expect(page.locator(".row").first).to_be_visible()


def search(page: Page, query: str) -> None:
    """Type the query; the list is of it afterwards."""
    page.locator("#search").fill(query)
    expect(page.locator("#found")).to_have_attribute("data-for", query)


def open_episode(row: Locator, says: str) -> None:
    """Click the row; the episode, whose title says so, is shown afterwards.

    The page of a run has a title, too, with the names of its model and environment: only an episode's names a trial.
    """
    row.click()
    expect(row.page.locator("h1:has(small)")).to_contain_text(says)


def test_episodes_are_listed_filtered_and_searched(page: Page) -> None:
    expect(page.locator("#found")).to_contain_text("241 episodes")
    assert "token" not in page.url
    assert page.locator(".row").count() < 60  # only what is in sight exists
    page.get_by_role("button", name=re.compile("^failed")).click()
    expect(page.locator("#found")).to_contain_text("80 episodes")
    page.locator("#search").fill("is:failed tag:refund steps=2")
    expect(page.locator("#found")).to_contain_text("26 episodes")
    page.locator("#search").fill("needle")  # a word of a transcript
    expect(page.locator("#found")).to_contain_text("2 episodes")
    expect(page.locator(".row").first).to_contain_text("task080")
    page.locator("#search").fill("colour:red")
    expect(page.locator("#found")).to_contain_text("no such key")
    page.locator("#search").fill("")
    expect(page.locator("#found")).to_contain_text("241 episodes")
    page.locator("#list").evaluate("list => { list.scrollTop = list.scrollHeight }")
    expect(page.locator(".row").last).to_contain_text("lost")


def test_a_click_counts_though_the_list_is_drawn_anew_before_its_release(page: Page) -> None:
    row = page.locator(".row", has_text="task001").first
    row.hover()
    page.mouse.down()
    page.locator("#list").evaluate(
        "list => new Promise(done => { list.scrollTop += 8;"
        " const wait = frames => frames ? requestAnimationFrame(() => wait(frames - 1)) : done(); wait(4); })"
    )
    page.mouse.up()
    expect(page.locator("h1:has(small)")).to_contain_text("task001")


def test_a_space_at_the_end_of_a_search_stays_while_more_is_typed(page: Page) -> None:
    expect(page.locator("#headline")).to_contain_text("scored")
    page.keyboard.press("/")
    page.keyboard.type("task000 ")
    expect(page.locator("#found")).to_have_attribute("data-for", "task000")
    page.keyboard.type("trial:1")
    expect(page.locator("#found")).to_have_attribute("data-for", "task000 trial:1")
    expect(page.locator("#found")).to_contain_text(re.compile(r"^1 episode\b"))


def test_the_bar_and_the_overview_have_success_with_its_interval(page: Page) -> None:
    for place in ("#headline .rate", ".totals .rate"):
        expect(page.locator(place)).to_contain_text("66.7 % 60.4 – 72.4")
        expect(page.locator(f"{place} .whisker")).to_be_visible()
    expect(page.locator("#headline")).to_contain_text("240/241 scored")


def test_a_run_with_too_few_scores_has_two_bounds_on_its_page(browser: Browser, tmp_path: Path) -> None:
    with run_viewer(write_run(tmp_path / "run", "strict", paying=1, tasks=1, trials=1)) as address:
        for page in open_page(browser, enter(browser, address)):
            expect(page.locator("#headline")).to_have_text("50.0 .. 100.0 %1/2 scored, 1 infra")
            expect(page.locator(".total").first).to_contain_text("solved, if those without a score had failed .. succ")
            expect(page.locator(".whisker")).to_have_count(0)


def test_a_training_that_lost_held_out_tasks_has_two_bounds_on_its_page(browser: Browser, tmp_path: Path) -> None:
    with run_viewer(write_training_run(tmp_path / "run", scored=4)) as address:
        for page in open_page(browser, enter(browser, address)):
            expect(page.locator("#headline")).to_have_text("25.0 .. 75.0 %held-out, iteration 4, 4/8 scored")


def test_a_page_follows_its_run_and_the_cursor_on_a_curve_stays(browser: Browser, tmp_path: Path) -> None:
    run = write_training_run(tmp_path / "train")
    with run_viewer(run) as address:
        for page in open_page(browser, enter(browser, address)):
            held, entropy = page.locator(".curve.held"), page.get_by_role("slider", name="entropy, by iteration")
            expect(held.locator(".value")).to_have_text("50.0 % (37.5 % – 75.0 %) iteration 4")
            expect(page.locator("#found")).to_contain_text("16 episodes")
            page.locator("#list").evaluate("list => { list.scrollTop = 60 }")
            entropy.focus()
            page.keyboard.press("Home")
            row = {"test/seeds/success": 0.75, "test/seeds/low": 0.5, "test/seeds/high": 0.875, "entropy": 0.25}
            with (run / "metrics.jsonl").open("a", encoding="utf-8") as file:
                file.write(json.dumps({"iteration": 5, **row}) + "\n")
            with TrajectoryStore.open(run, write=True) as store:
                store.append(order_episode("task0", 90, pays=True, run="train", group="shop/task0/4"), {})
            expect(page.locator("#found")).to_contain_text("17 episodes")
            expect(page.locator(".chip", has_text="all 17")).to_be_visible()
            expect(page.locator("#headline")).to_contain_text("75.0 % 50.0 – 87.5")
            expect(held.locator(".value")).to_have_text("75.0 % (50.0 % – 87.5 %) iteration 5")
            expect(page.locator(".totals")).to_contain_text("17/17")
            expect(entropy).to_have_attribute("aria-valuemax", "5")
            expect(entropy).to_have_attribute("aria-valuenow", "1")
            expect(entropy).to_be_focused()
            assert page.locator("#list").evaluate("list => list.scrollTop") == 60


def test_an_episode_that_is_open_stays_as_its_run_grows(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "steady", paying=1, tasks=2)
    with run_viewer(run) as address:
        for page in open_page(browser, enter(browser, address)):
            page.locator("#selects select").last.select_option("newest")
            page.locator(".row", has_text="task000").last.click()
            step = page.locator(".step").nth(1)
            step.locator(".tokens summary").click()
            note = page.locator(".noting textarea")
            note.fill("odd")
            with TrajectoryStore.open(run, write=True) as store:
                store.append(order_episode("new", 0, pays=True, run="steady"), {})
            expect(page.locator("#found")).to_contain_text("6 episodes")
            expect(page.locator(".row").first).to_contain_text("new")  # newest first: the others have moved down
            expect(page.locator(".row.selected")).to_contain_text("task000")
            expect(step.locator(".token").first).to_be_visible()
            expect(note).to_have_value("odd")
            expect(note).to_be_focused()


def test_every_action_has_a_key(page: Page) -> None:
    wait_for_run_page(page)
    page.keyboard.press("/")
    page.keyboard.type("task000")
    expect(page.locator("#found")).to_contain_text("2 episodes")
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    expect(page.locator("h1")).to_contain_text("trial 1")
    page.keyboard.press("k")
    expect(page.locator("h1")).to_contain_text("trial 0")
    page.keyboard.press("Enter")
    page.keyboard.press("j")
    expect(page.locator(".step.focused .at")).to_have_text("0")
    page.keyboard.press("j")
    expect(page.locator(".step.focused .at")).to_have_text("1")
    page.keyboard.press("x")
    expect(page.locator(".step.focused .token")).to_have_count(4)
    page.keyboard.press("c")
    expect(page.locator(".parted")).to_contain_text("The two are the same in every step.")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    expect(page.locator("#found")).to_contain_text("241 episodes")
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).not_to_be_visible()


def test_an_episode_shows_calls_changes_tokens_credit_and_its_anchors(page: Page) -> None:
    search(page, "task000 trial:0")
    open_episode(page.locator(".row", has_text="task000"), "task000 trial 0")
    expect(page.locator(".step")).to_have_count(2)
    second = page.locator(".step").nth(1)
    expect(second.locator(".tool")).to_have_text("pay_order")
    changes = second.locator(".state li")
    expect(changes).to_have_text([re.compile("orders.*status.*open.*paid", re.S), re.compile("log.*1.*start", re.S)])
    expect(second).to_contain_text("return 1.000")
    expect(second).to_contain_text("advantage -0.500")
    second.locator(".tokens summary").click()
    expect(second.locator(".version")).to_have_text(["v1", "v9"])
    expect(second.locator(".drawn")).to_have_text("v111 12 v913 14")
    tokens = second.locator(".token")
    expect(tokens).to_have_count(4)
    shades = tokens.evaluate_all("all => all.map(t => t.style.getPropertyValue('--unlikely'))")
    assert shades == ["0.002", "0.100", "0.800", "1"]
    page.locator(".step").first.locator(".anchor").click()
    siblings = page.locator(".sibling")
    expect(siblings).to_have_count(2)
    expect(siblings.nth(1)).to_contain_text("trial 1, step 0")
    expect(siblings.nth(1)).to_contain_text("get_order")


def test_two_runs_are_shown_side_by_side_from_their_divergence(page: Page) -> None:
    page.get_by_role("button", name="side by side").click()
    expect(page.locator("#found")).to_contain_text("60 pairs")
    page.locator(".row", has_text="task050").click()
    expect(page.locator(".parted")).to_contain_text("Alike for 1 step; in step 1 they call different tools.")
    tools = page.locator(".parting .tool")
    expect(tools).to_have_text(["pay_order", "refund_order"])
    page.reload()
    expect(page.locator(".parting .tool")).to_have_text(["pay_order", "refund_order"])


def write_turns(folder: Path, model: str, looks: int) -> Path:
    """A run of one episode of two user turns, the first of which takes `looks` steps."""
    config = {"env": "shop", "suite": "shop", "agent": "react", "policy": f"openai:http://127.0.0.1:8799/v1#{model}"}
    one = order_episode("task", 0, pays=True, run=model)
    first, second = one.steps
    says = replace(
        second, turn=1, observation=Observation(messages=(Message(role="user", content="Now pay."),), tools=())
    )
    steps = tuple(replace(first, action=replace(first.action, text=f"{model} {n}")) for n in range(looks))
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        store.append(replace(one, steps=(*steps, says), score=float(looks == 1)), {"state-0": {}, "state-1": {}})
    return folder


def test_side_by_side_shows_the_same_user_turn_in_a_row_and_tabs_show_the_model(
    browser: Browser, tmp_path: Path
) -> None:
    with run_viewer(write_turns(tmp_path / "a", "good", 1), write_turns(tmp_path / "b", "weak", 3)) as address:
        for page in open_page(browser, enter(browser, address)):
            tabs = page.locator("#runs button")
            expect(tabs).to_have_text(["Agood · shop · react", "Bweak · shop · react", "side by side"])
            title = tabs.nth(1).get_attribute("title") or ""
            assert title.startswith("openai:http://127.0.0.1:8799/v1#weak · ")
            tabs.nth(2).click()
            page.locator(".row", has_text="task").click()
            expect(page.locator("h2.turn")).to_have_text(["user turn 1", "user turn 2"])  # as reasons count them
            expect(page.locator(".step .tag", has_text="turn")).to_have_text(["turn 1", "turn 1", "turn 2", "turn 2"])
            rows = page.locator(".timeline .two")
            expect(rows).to_have_count(4)
            expect(rows.nth(1).locator(".ended")).to_have_text("A has no more steps in this turn")
            expect(rows.nth(2).locator(".ended")).to_have_text("")  # the row above has said it
            expect(rows.nth(3).locator(".tool")).to_have_text(["pay_order", "pay_order"])
            for look in (".tool", ".step"):  # they are no cells of the table tasks x runs
                expect(rows.nth(3).locator(look).first).to_have_css("text-align", "start")
                expect(rows.nth(3).locator(look).first).not_to_have_css("white-space", "nowrap")
            page.set_viewport_size({"width": 390, "height": 800})
            said = "all => all.slice(0, 2).map(each => getComputedStyle(each, '::before').content)"
            assert page.locator(".beside").evaluate_all(said) == ['"A"', '"B"']  # the headings, one below the other


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_light_and_dark_follow_the_system_and_can_be_chosen(browser: Browser, two: ViewerAccess, scheme: Any) -> None:
    def expect_scheme(page: Page, *, dark: bool) -> None:
        colour = r"rgb\(\d\d?, \d\d?, \d\d?\)" if dark else r"rgb\(2\d\d, 2\d\d, 2\d\d\)"
        expect(page.locator("body")).to_have_css("background-color", re.compile(colour))

    for page in open_page(browser, two, color_scheme=scheme):
        expect(page.locator(".row").first).to_be_visible()
        expect_scheme(page, dark=scheme == "dark")
        page.keyboard.press("t")
        expect_scheme(page, dark=scheme != "dark")
        page.reload()
        expect(page.locator(".row").first).to_be_visible()
        expect_scheme(page, dark=scheme != "dark")


def test_a_hostile_run_stays_text(browser: Browser, tmp_path: Path) -> None:
    with run_viewer(write_hostile(tmp_path / "run")) as address:
        for page in open_page(browser, enter(browser, address)):
            expect(page.locator(".row")).to_have_count(2)
            for row, name in enumerate(("<script>alert(1)</script>", "xxxx")):
                open_episode(page.locator(".row").nth(row), name)
                expect(page.locator(".noting")).to_be_visible()  # from here on nothing is drawn anew
                unfold = "all => all.forEach(each => { each.open = true })"
                page.locator("#detail details").evaluate_all(unfold)
                wide = page.evaluate("document.documentElement.scrollWidth - innerWidth")
                assert wide <= 0
                assert page.locator("#detail").evaluate("each => each.scrollWidth - each.clientWidth") <= 0
                edges = "['browse', 'search'].map(id => document.getElementById(id).getBoundingClientRect().right)"
                browse, field = page.evaluate(edges)
                assert field < browse
                assert page.locator("h1").evaluate("each => each.getBoundingClientRect().height") < 200
                assert page.locator("#panes img, #panes script, #panes iframe, #panes a[href^=javascript]").count() == 0
            open_episode(page.locator(".row").first, "<script>alert(1)</script>")
            marks = set(page.locator("h1 .unseen").all_text_contents())
            assert marks == {"001B", "202E", "202C", "200B", "E0041", "D800"}
            page.locator("#search").fill(HOSTILE_TEXT.replace("\ud800", "")[:60])
            expect(page.locator("#found")).to_contain_text(re.compile("1 episode|no such key"))
            search(page, "is:failed")
            expect(page.locator("#found")).to_contain_text("1 episode")
            open_episode(page.locator(".row"), "xxxx")
            page.locator(".more", has_text="2,000,").first.click()
            expect(page.locator(".more", has_text="less")).to_have_count(1)


def test_a_local_file_opens_the_viewer_and_hides_the_token(browser: Browser, tmp_path: Path) -> None:
    """The browser starts with a local file, so the way in begins at another site; the cookie is sent all the same."""
    with run_viewer(write_run(tmp_path / "run", "steady", paying=1, tasks=2)) as address:
        file = private_page(str(tmp_path), address)
        context = browser.new_context()
        page = context.new_page()
        page.goto(file.as_uri())
        expect(page.locator("#found")).to_contain_text("5 episodes", timeout=TIMEOUT_MS)
        assert (page.url.startswith("http://127.0.0.1:"), "token" in page.url) == (True, False)
        (cookie,) = context.cookies()
        assert (cookie["httpOnly"], cookie["sameSite"]) == (True, "Strict")
        assert page.url.partition("#")[0].endswith(cookie["path"])
        page.reload()
        expect(page.locator("#found")).to_contain_text("5 episodes", timeout=TIMEOUT_MS)
        other = context.new_page()
        other.goto(page.url)
        expect(other.locator("#found")).to_contain_text("5 episodes", timeout=TIMEOUT_MS)
        context.close()
