"""The list of runs, tasks x runs, curves, and markdown in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Locator, Page, Route, expect
from recorded_runs import write_hostile, write_run, write_training_run
from records import HOSTILE_TEXT, SEARCH, order_episode
from test_viewer_page import ViewerAccess, open_page, wait_for_run_page
from viewer_process import run_viewer

from gymcp.store import TrajectoryStore, create_run
from gymcp.types import Message, Observation, RequestTimes

pytestmark = pytest.mark.xdist_group("viewer")

HOSTILE_MARKDOWN = """\
# Title <img src=x onerror=alert(1)>

[click](javascript:alert(2)) and [far](https://evil.invalid/a "title") and ![pic](https://evil.invalid/p.png)

<script>alert(3)</script><iframe src="https://evil.invalid/"></iframe><b>not bold</b> &lt;i&gt; \u202ereversed\u202c

**bold** *italic* `code <b>` ~~gone~~ [![nested](https://evil.invalid/n.png)](data:text/html,<script>alert(4)</script>)

| head | <svg onload=alert(5)> |
|---|---|
| 1 | **2** |

- one
  - two
1. first

> quote <a href="https://evil.invalid">link</a>

```html
<script>alert(6)</script>
```

<https://evil.invalid/auto> https://evil.invalid/bare
"""
ENDLESS = "**a **a" * 3000 + "\n\n" + "[" * 5000 + "\n\n" + "> " * 500 + "deep\n\n" + "`" * 5000 + "\n\n" + "*_" * 5000


def write_thinking(folder: Path) -> Path:
    """A run of one episode whose texts are markdown, with reasoning, tools and times of a request."""
    config = {"env": "shop", "suite": "shop", "agent": "react", "policy": "openai:http://127.0.0.1:1/v1#gpt-think"}
    with create_run(folder, config), TrajectoryStore.open(folder, write=True) as store:
        shown = order_episode("task000", 0, pays=True, run="think")
        messages = (Message(role="system", content=HOSTILE_MARKDOWN), Message(role="user", content="Pay **order** 7."))
        first = replace(
            shown.steps[0],
            observation=Observation(messages=messages, tools=(SEARCH,)),
            reasoning="I **must** look.",
            request_times=RequestTimes(request_s=0.5, first_token_s=0.2),
        )
        second = replace(shown.steps[1], action=replace(shown.steps[1].action, text=ENDLESS))
        store.append(replace(shown, steps=(first, second), components={"net_of_price": 0.95}), {})
    return folder


@pytest.fixture(scope="module")
def runs(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ViewerAccess]:
    top = tmp_path_factory.mktemp("runs")
    write_run(top / "a", "steady", paying=100)
    write_run(top / "b", "hasty", paying=40)
    write_hostile(top / "hostile")
    write_thinking(top / "think")
    write_training_run(top / "train", iterations=8)
    (top / "broken").mkdir()
    (top / "broken" / "run.json").write_text("{")
    with run_viewer(top) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        expect(page.locator("#headline")).to_have_text("6 runs")
        found = ViewerAccess(url=page.url, cookie=context.storage_state())
        context.close()
        yield found


@pytest.fixture
def page(browser: Browser, runs: ViewerAccess) -> Iterator[Page]:
    for page in open_page(browser, runs):
        expect(page.locator(".runtable tbody tr")).to_have_count(6)
        yield page


def names(page: Page) -> Locator:
    return page.locator(".runname")


def leave(page: Page) -> None:
    """Press the key that leads from a run to the list, once the page knows that there is one."""
    expect(page.locator("#home")).to_have_text("← runs")
    page.keyboard.press("Escape")


def test_the_list_sorts_by_every_column_and_filters(page: Page) -> None:
    expect(page.locator("tr", has_text="steady")).to_contain_text("66.7 %")
    expect(page.locator("tr", has_text="steady")).to_contain_text("60.4 – 72.4")
    expect(page.locator(".runtable tr", has_text="gpt-think")).to_contain_text("95.0 %")  # net of price
    expect(page.locator("tr.broken", has_text="broken")).to_contain_text("holds no trajectories.sqlite")
    heads = page.locator(".runtable th button")
    for at in range(heads.count()):
        heads.nth(at).click()
        sorted_by = page.locator(".runtable th[aria-sort]")
        expect(sorted_by).to_have_count(1)
        expect(sorted_by.locator("button", has_text=re.compile("[↑↓]"))).to_have_attribute(
            "data-key", str(heads.nth(at).get_attribute("data-key"))
        )
        expect(names(page).last).to_have_text("broken")
    page.get_by_role("button", name="success").click()
    expect(names(page).first).to_have_text("gpt-think")
    page.get_by_role("button", name="success").click()
    expect(names(page).first).to_have_text("hasty")
    page.locator("#search").fill("shop -training hasty")
    expect(page.locator("#found")).to_contain_text("1 run")
    expect(names(page)).to_have_text(["hasty"])
    page.locator("#search").fill("nothing such")
    expect(page.locator("#table")).to_contain_text("no run matches the filter")
    page.reload()
    expect(page.locator("#search")).to_have_value("nothing such")


def test_the_keyboard_alone_opens_a_run_and_leads_back(page: Page) -> None:
    page.keyboard.press("/")
    page.keyboard.type("steady")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("241 episodes")
    leave(page)
    expect(page.locator("#search")).to_have_value("steady")
    page.keyboard.press("Escape")
    expect(page.locator(".runtable tbody tr")).to_have_count(6)
    page.keyboard.press("j")
    page.keyboard.press("x")
    expect(page.locator("#besides")).to_have_text("choose one more")
    page.keyboard.press("g")
    page.keyboard.press("x")
    page.keyboard.press("c")
    expect(page.locator("#found")).to_contain_text("60 pairs")


def test_a_cell_of_the_matrix_opens_the_episodes_of_that_task(page: Page) -> None:
    page.keyboard.press("m")
    expect(page.locator("#found")).to_contain_text("tasks · 5 runs")
    page.locator("#taskfilter").fill("task05")
    expect(page.locator("#found")).to_contain_text("10 tasks · 5 runs")
    expect(page.locator("#cell-0-0")).to_have_text("2/2")
    expect(page.locator("#cell-1-1")).to_have_text("0/2")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("l")
    expect(page.locator("#cell-1-1")).to_have_class(re.compile(r"\bat\b"))
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("2 episodes")
    expect(page.locator(".row").first).to_contain_text("task051")
    page.go_back()
    expect(page.locator("#found")).to_contain_text("10 tasks")
    assert page.locator(".gridrow").count() <= 10
    page.locator("#cell-0-0").click()
    expect(page.locator(".row").first).to_contain_text("task050")


def test_suites_by_models_are_filtered_and_lead_to_their_runs(page: Page) -> None:
    page.keyboard.press("s")
    expect(page.locator("#found")).to_have_text("3 suites · 4 models · 4 runs")
    row = page.locator(".suitetable tbody tr", has_text="shop 1")
    expect(row.locator(".entry")).to_have_count(2)
    steady = row.locator('td[data-label="steady"]')
    latency = "decision 0.20 s / 0.30 s · call 10 ms / 20 ms"
    for words in ("66.7 % 60.4 – 72.4", "240/241 scored, 1 infra", "5,302 tokens", latency):
        expect(steady).to_contain_text(words)
    expect(page.locator('td[data-label="gpt-think"] .entry')).to_contain_text("net of price 95.0 %")
    page.locator("#search").fill("shop -think")
    expect(page.locator("#found")).to_have_text("1 suite · 2 models · 2 runs")
    page.reload()
    expect(page.locator(".suitetable thead th")).to_have_text(["suite", "hasty", "steady"])
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(steady.locator("a")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_contain_text("241 episodes")
    leave(page)
    expect(page.locator("#found")).to_have_text("1 suite · 2 models · 2 runs")
    page.locator("#search").fill("training")
    expect(page.locator("#table")).to_have_text("no run matches the filter")


def test_a_late_answer_does_not_replace_a_newer_matrix(page: Page) -> None:
    held: list[Route] = []

    def hold_the_first(route: Route) -> None:
        if held:
            route.continue_()
        else:
            held.append(route)

    page.route("**/api/matrix", hold_the_first)
    address = page.url.split("#")[0] + "#view=tasks&task=task05"
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("#found")).to_contain_text("10 tasks · 5 runs")
    with page.expect_response("**/api/matrix"):
        held[0].continue_()
    page.evaluate("() => new Promise(done => setTimeout(done, 50))")
    expect(page.locator("#cell-0-0")).to_have_text("2/2")


def test_only_rows_of_the_matrix_in_sight_exist(page: Page) -> None:
    page.keyboard.press("m")
    expect(page.locator("#found")).to_contain_text("tasks · 5 runs")
    assert page.locator(".gridrow").count() < 40
    page.locator("#grid").focus()
    page.keyboard.press("G")
    expect(page.locator(".gridrow").last).to_contain_text("xxxx")
    page.locator("#gridtools select").select_option("differ")
    page.keyboard.press("g")


def test_a_training_run_shows_curves_that_lead_into_iterations(page: Page) -> None:
    page.locator(".runname", has_text="pays").click()
    curves = page.locator(".curve")
    expect(curves).to_have_count(4)
    expect(curves.first).to_contain_text("held-out success: seeds")
    expect(curves.first).to_contain_text("50.0 % (37.5 % – 75.0 %) iteration 8")
    assert curves.first.locator(".band").count() == 1
    slider = curves.nth(1).locator("svg")
    slider.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(slider).to_have_attribute("aria-valuetext", "iteration 6: 0.3333")
    page.keyboard.press("Enter")
    expect(page.locator("#search")).to_have_value("iteration:6")
    expect(page.locator("#found")).to_contain_text("4 episodes")
    expect(page.locator(".row").first).to_contain_text("iteration 6")
    slider.click(position={"x": 2, "y": 20})
    expect(page.locator("#search")).to_have_value("iteration:1")


def test_the_held_out_curve_says_what_there_is_of_iteration_0(page: Page) -> None:
    page.locator(".runname", has_text="pays").click()
    expect(page.locator(".curves")).to_contain_text("Held-out episodes are not kept")
    page.locator(".curve.held svg").focus()
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    expect(page.locator("#search")).to_have_value("iteration:0")
    expect(page.locator("#list")).to_contain_text("Iteration 0 is the policy before practice")
    expect(page.locator("#list")).to_contain_text("only whether each task was solved, in heldout.jsonl")
    page.locator("#search").fill("iteration:99")
    expect(page.locator("#list")).to_have_text("nothing matches")


def test_reasoning_tools_and_gold_are_folded_beside_the_episode(page: Page) -> None:
    page.locator(".runname", has_text="gpt-think").click()
    page.locator(".row").click()
    reasoning = page.locator(".reasoning")
    expect(reasoning).to_have_count(1)
    expect(reasoning.locator("strong")).to_have_count(0)
    reasoning.locator("summary").click()
    expect(reasoning.locator("strong")).to_have_text("must")
    page.locator("summary", has_text="tools on offer").click()
    page.locator(".tooldef summary").click()
    expect(page.locator(".tooldef")).to_contain_text('"type": "object"')
    page.locator("summary", has_text="gold calls").click()
    expect(page.locator(".facts").first).to_contain_text("gold and target are not in a run folder")


def test_hostile_markdown_stays_text(page: Page) -> None:
    """`open_page` fails the test if a script runs, a dialog opens, or another address is asked."""
    page.locator(".runname", has_text="gpt-think").click()
    page.locator(".row").click()
    shown = page.locator(".said.system .text.markdown")
    expect(shown.locator("[role=heading]")).to_have_text("Title <img src=x onerror=alert(1)>")
    expect(shown.locator(".md-target")).to_have_text(
        [
            "javascript:alert(2)",
            "https://evil.invalid/a",
            "https://evil.invalid/p.png",
            re.compile(r"https://evil\.invalid/n\.png|data:text/html"),
        ]
    )
    expect(shown.locator("strong")).to_have_text(["bold", "2"])
    expect(shown.locator("em")).to_have_text("italic")
    expect(shown.locator("th").nth(1)).to_have_text("<svg onload=alert(5)>")
    expect(shown.locator("ul ul li")).to_have_text("two")
    expect(shown.locator("ol li")).to_have_text("first")
    expect(shown.locator("pre code")).to_have_text("<script>alert(6)</script>")
    expect(shown.locator(".unseen").first).to_have_text("202E")
    foreign = "img, script, iframe, a, b, svg, object, embed, form, link, style, [onerror], [onload], [href], [src]"
    expect(shown.locator(foreign)).to_have_count(0)
    page.keyboard.press("r")
    written = page.locator(".said.system .text")
    expect(written).to_contain_text("**bold** *italic* `code <b>`")
    expect(written.locator("strong")).to_have_count(0)
    page.keyboard.press("r")
    expect(shown.locator("strong").first).to_have_text("bold")
    expect(page.locator(".step").nth(1)).to_be_visible()  # the text that is made to be slow is shown, too


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1280)])
def test_no_page_is_wider_than_the_screen(browser: Browser, runs: ViewerAccess, scheme: Any, width: int) -> None:
    for page in open_page(browser, runs, color_scheme=scheme):
        page.set_viewport_size({"width": width, "height": 800})
        expect(page.locator(".runtable tbody tr")).to_have_count(6)
        overflow = "document.documentElement.scrollWidth - innerWidth"
        assert page.evaluate(overflow) <= 0
        expect(page.locator("td[data-label='first token p50'] [title]").first).to_have_text(
            "0.20 s"
        )  # the most columns
        assert page.locator("#table").evaluate("each => each.scrollWidth - each.clientWidth") <= 0
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", colour))) < 300) is (scheme == "dark")
        page.keyboard.press("m")
        expect(page.locator(".gridrow").first).to_be_visible()
        assert page.evaluate(overflow) <= 0
        page.keyboard.press("s")
        expect(page.locator(".entry").first).to_be_visible()
        assert page.evaluate(overflow) <= 0
        if width < 900:
            assert page.locator("#table").evaluate("each => each.scrollWidth - each.clientWidth") <= 0
        page.keyboard.press("s")
        page.locator(".runname", has_text="pays").click()
        wait_for_run_page(page)
        if width < 900:
            page.get_by_role("button", name="curves").click()
        expect(page.locator(".curve").first).to_be_visible()
        assert page.evaluate(overflow) <= 0
        assert page.locator("#detail").evaluate("each => each.scrollWidth - each.clientWidth") <= 0


def test_a_hostile_run_stays_text_in_the_list(page: Page) -> None:
    row = page.locator("tr", has_text="<script>alert(1)</script>")
    expect(row).to_have_count(1)
    assert page.locator("#page img, #page script, #page iframe, #page a[href^=javascript]").count() == 0
    page.keyboard.press("s")
    expect(page.locator(".suitetable tbody tr", has_text="<script>")).to_have_count(1)
    page.keyboard.press("m")
    expect(page.locator(".gridrow", has_text="<script>")).to_have_count(1)
    page.locator(".gridrow", has_text="<script>").locator(".cell.good").click()
    expect(page.locator("#found")).to_contain_text("1 episode")
    assert HOSTILE_TEXT.startswith("<script>")


def test_the_list_follows_a_run_that_grows(browser: Browser, tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", "steady", paying=1, tasks=1, trials=1)
    write_run(tmp_path / "b", "hasty", paying=1, tasks=1, trials=1)
    with run_viewer(tmp_path) as address:
        context = browser.new_context()
        page = context.new_page()
        page.goto(address)
        cells = page.locator('td[data-label="episodes"]')
        expect(cells).to_have_text(["2", "2"])
        with TrajectoryStore.open(run, write=True) as store:
            store.append(order_episode("new", 0, pays=True, run="steady"), {})
        expect(cells).to_have_text(["3", "2"])
        write_run(tmp_path / "c", "third", paying=1, tasks=2, trials=1)
        expect(cells).to_have_text(["3", "2", "3"])
        context.close()
