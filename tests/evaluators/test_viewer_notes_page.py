"""Notes of people in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect
from recorded_runs import write_run
from records import HOSTILE_TEXT, order_episode
from test_export_page import open_export
from test_viewer_page import enter, open_episode, open_page, search
from viewer_process import run_viewer

from gymcp.evaluators.viewer.export.export import export_viewer
from gymcp.evaluators.viewer.export.run_data import Choice
from gymcp.store import TrajectoryStore
from gymcp.store.notes import NOTES_FILE, Note, append_note, read_notes

pytestmark = pytest.mark.xdist_group("viewer")

HOSTILE = HOSTILE_TEXT.replace("\x1b", "").replace("\ud800", "")
COMPONENTS = {"judge.polite": 1.0, "judge.verdicts": 1.0}


def write_judged(folder: Path) -> Path:
    run = write_run(folder, "steady", paying=2, tasks=3)
    with TrajectoryStore.open(run, write=True) as store:
        store.append(order_episode("judged", 0, pays=True, run="steady", components=COMPONENTS), {})
    append_note(run, Note(episode="steady-judged-0", who="bob <b>", note=HOSTILE, labels=("<i>",)), seen="")
    return run


def test_a_note_is_typed_saved_and_found_with_the_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    run = write_judged(tmp_path / "run")
    with run_viewer(run, "--name", "ann") as address:
        for page in open_page(browser, enter(browser, address)):
            page.keyboard.press("/")
            page.keyboard.type("task:judged")
            expect(page.locator("#found")).to_contain_text("1 episode")
            page.keyboard.press("Enter")
            page.keyboard.press("Enter")
            expect(page.locator(".note")).to_contain_text("bob <b>")
            assert page.locator(".note b b, .note i, .note script, .note img").count() == 0
            page.keyboard.press("e")
            page.keyboard.type("looks odd, jk /")
            page.keyboard.press("Tab")
            page.keyboard.type("odd, look again")
            for _ in range(2):
                page.keyboard.press("Tab")
            page.keyboard.press("Enter")
            expect(page.get_by_role("button", name="verdict: fail")).to_have_attribute("aria-pressed", "true")
            page.get_by_role("button", name="polite: pass").click()
            page.keyboard.press("Escape")
            page.keyboard.press("Escape")
            search(page, "task000 trial:0")
            open_episode(page.locator(".row", has_text="task000"), "task000")
            search(page, "")
            open_episode(page.locator(".row", has_text="judged"), "judged")
            expect(page.locator(".noting textarea")).to_have_value("looks odd, jk /")  # the typed text is still there
            page.keyboard.press("e")
            page.keyboard.press("Control+Enter")
            expect(page.locator(".noting [role=status]")).to_contain_text("saved")
            expect(page.locator(".row", has_text="judged").locator(".tag")).to_have_text(
                ["fail", "<i>", "odd", "look again", "✎"]
            )
            page.locator("#search").fill('label:"look again"')
            expect(page.locator("#found")).to_contain_text("1 episode")
    mine = read_notes(run)["steady-judged-0"]["ann"]
    assert (mine.note, mine.labels, mine.verdict) == ("looks odd, jk /", ("odd", "look again"), "fail")
    assert mine.criteria == {"polite": "pass"}


def test_a_refused_note_stays_in_its_field_and_two_windows_lose_nothing(browser: Browser, tmp_path: Path) -> None:
    run = write_judged(tmp_path / "run")
    with run_viewer(run, "--name", "ann") as address:
        access = enter(browser, address)
        for page in open_page(browser, access):
            page.locator(".row", has_text="judged").click()
            field = page.locator(".noting textarea")
            field.fill("x" * 30_000)
            field.evaluate("each => { each.dataset.refused = 'yes' }")
            page.get_by_role("button", name="save").click()
            expect(page.locator(".noting [role=status]")).to_contain_text("the most is 20,000: shorten it")
            expect(field).not_to_have_attribute("data-refused", "yes")  # drawn anew, with what the server has
            expect(field).to_have_value("x" * 30_000)
            append_note(run, Note(episode="steady-judged-0", who="ann", note="from elsewhere"), seen="")
            field.fill("from here")
            page.get_by_role("button", name="save").click()
            expect(page.locator(".noting [role=status]")).to_contain_text("was changed in another window")
            expect(field).to_have_value("from here")
            expect(page.locator(".note", has_text="ann")).to_contain_text("from elsewhere")
            assert read_notes(run)["steady-judged-0"]["ann"].note == "from elsewhere"
            page.get_by_role("button", name="save").click()
            expect(page.locator(".noting [role=status]")).to_contain_text("saved")
    assert read_notes(run)["steady-judged-0"]["ann"].note == "from here"
    assert "from elsewhere" in (run / NOTES_FILE).read_text()


def test_an_export_shows_notes_and_takes_none(browser: Browser, tmp_path: Path) -> None:
    run = write_judged(tmp_path / "run")
    export_viewer([run], tmp_path / "out", listed=False, choice=Choice())
    for page in open_export(browser, tmp_path / "out"):
        page.locator("#search").fill("is:noted label:<i> note:bold")
        expect(page.locator("#found")).to_contain_text("1 episode")
        page.locator(".row").click()
        expect(page.locator(".note")).to_contain_text("bob <b>")
        expect(page.locator(".note")).to_contain_text(re.compile("<script>alert"))
        assert page.locator(".noting, .note script").count() == 0
