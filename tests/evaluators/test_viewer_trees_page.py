"""Trees in a real browser: drawn, read with the keyboard, put side by side, and the same in an export."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from page_findings import grave_findings
from playwright.sync_api import Browser, Page, expect
from recorded_trees import write_credited_tree_run, write_tree_run
from test_accessibility import PHONE
from test_export_page import open_export
from test_viewer_page import TIMEOUT_MS, enter, open_page
from viewer_process import run_viewer

from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.run_data import Choice

pytestmark = pytest.mark.xdist_group("viewer")
ACTIONS = ["look", "ask", "pay", "refund", "pay", "look", "pay"]
"""Names on the edges, in the order of drawing."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree_run(tmp_path_factory.mktemp("trees") / "run")


@pytest.fixture(params=["viewer", "export"])
def page(request: pytest.FixtureRequest, browser: Browser, run: Path, tmp_path: Path) -> Iterator[Page]:
    """The run with trees in a viewer, then in an export."""
    if request.param == "export":
        export_viewer([run], tmp_path / "made", listed=False, choice=Choice())
        yield from open_export(browser, tmp_path / "made")
        return
    with run_viewer(run) as address:
        yield from open_page(browser, enter(browser, address))


def test_a_tree_is_drawn_and_its_leaves_are_put_side_by_side(page: Page) -> None:
    expect(page.locator(".row").first).to_contain_text("3 branches")
    page.locator(".row").first.click()
    page.locator(".totree").click()
    nodes = page.locator(".node")
    expect(nodes).to_have_count(7)
    assert nodes.locator(".act").all_inner_texts() == ACTIONS
    assert page.locator(".node .pill").all_inner_texts() == ["0.50", "0.33", "0.00", "0.50", "1.00", "0.00", "1.00"]
    assert page.locator(".leaf .fine").all_inner_texts() == ["first", "2.1", "2.1/3.1", "1.1"]
    nodes.nth(3).click()  # the first step of branch 2.1 refunds
    expect(page.locator(".treestep h2")).to_have_text("Step 2 of branch 2.1")
    expect(page.locator(".treestep .state ins")).to_have_text("1")
    rows = page.locator(".leafrow")
    expect(rows.nth(2)).to_contain_text("left the world as it was where it branched off")
    expect(rows.nth(1).locator(".state li")).to_have_count(2)
    page.locator(".leaf").nth(1).click()
    expect(page.locator(".leaf").nth(1)).to_have_attribute("aria-pressed", "true")
    page.locator(".leaf").nth(3).click()
    expect(page.locator(".parted")).to_have_text("Alike for 1 step; in step 1 they call different tools.")
    assert page.locator(".two.names .side").all_inner_texts() == ["A\nbranch 2.1", "B\nbranch 1.1"]
    page.keyboard.press("Escape")  # out of both, to the list
    page.go_back()
    expect(page.locator(".two.names")).to_be_visible()


def test_a_branch_is_opened_from_its_tree_by_keys(page: Page) -> None:
    page.locator(".row").first.click()
    expect(page.locator(".totree")).to_be_visible()
    page.keyboard.press("b")
    expect(page.locator(".node")).to_have_count(7)
    page.locator(".leafrow a").nth(2).press("Enter")
    expect(page.locator(".verdict")).to_contain_text("branch 2.1/3.1, shares 3 steps")
    expect(page.locator(".timeline .step")).to_have_count(4)
    page.keyboard.press("b")
    expect(page.locator(".leaf.self")).to_contain_text("2.1/3.1")
    page.keyboard.press("b")
    expect(page.locator(".timeline .step")).to_have_count(4)


@pytest.fixture(params=["viewer", "export"])
def credited_page(request: pytest.FixtureRequest, browser: Browser, tmp_path: Path) -> Iterator[Page]:
    """The same run with the credit of two presets."""
    run = write_credited_tree_run(tmp_path / "run")
    if request.param == "export":
        export_viewer([run], tmp_path / "made", listed=False, choice=Choice())
        yield from open_export(browser, tmp_path / "made", "index.html#n=1&tree=1")
        return
    with run_viewer(run) as address:
        for page in open_page(browser, enter(browser, address)):
            page.locator(".row").first.click()
            page.locator(".totree").click()
            yield page


def test_the_advantages_of_each_stored_preset_can_be_chosen(credited_page: Page) -> None:
    """By keys, at first the preset that all leaves have; the choice stays when the page is loaded again."""
    page = credited_page
    under, select = page.locator(".node .under span"), page.get_by_label("preset")
    of_trees = ["+0.500"] * 3 + ["+0.250"] * 4
    expect(under).to_have_text(of_trees, timeout=TIMEOUT_MS)
    assert select.locator("option").all_inner_texts() == ["treepo", "grpo"]
    page.locator(".node").first.click()
    fact = page.locator(".treestep .fact", has_text="advantage")
    expect(fact).to_have_text("advantage +0.500")
    select.press("ArrowDown")
    expect(under).to_have_text(["-0.500"] * 3)
    expect(fact).to_have_text("advantage -0.500")
    expect(select).to_be_focused()
    page.reload()
    expect(under).to_have_text(["-0.500"] * 3, timeout=TIMEOUT_MS)
    select.press("ArrowUp")
    expect(under).to_have_text(of_trees)


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (PHONE, "dark")])
def test_the_tree_can_be_read_by_all(browser: Browser, width: int, scheme: str, tmp_path: Path) -> None:
    run = write_credited_tree_run(tmp_path / "run")
    export_viewer([run], tmp_path / "made", listed=False, choice=Choice())
    for page in open_export(browser, tmp_path / "made", "index.html#n=1&tree=1", color_scheme=scheme):
        page.set_viewport_size({"width": width, "height": 800})
        expect(page.locator(".node")).to_have_count(7, timeout=TIMEOUT_MS)
        page.locator(".node").first.click()
        expect(page.locator(".treestep .step")).to_be_visible()
        assert grave_findings(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
