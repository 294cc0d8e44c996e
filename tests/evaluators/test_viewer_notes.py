"""Notes of people in the viewer: who may write, what is kept, how it is found, and what a judge is compared with."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from inner_command import gymcp
from recorded_runs import write_run
from records import order_episode
from test_viewer import enter
from viewer_process import run_viewer

from gymcp.cli.runs.view import read_name, user_name
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.notes import collect_verdicts, pair_points
from gymcp.evaluators.viewer.runs import open_runs
from gymcp.store import EpisodeRow, TrajectoryStore
from gymcp.store.notes import NOTES_FILE, Note, append_note, read_notes
from gymcp.types import Json

JUDGED = {"judge.polite": 1.0, "judge.paid": 0.4, "judge.verdicts": 3.0, "judge.unanimous": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", "steady", paying=2, tasks=3)
    with TrajectoryStore.open(folder, write=True) as store:
        store.append(order_episode("judged", 0, pays=True, run="steady", components=JUDGED), {})
    return folder


@pytest.fixture
def browser(run: Path) -> Iterator[httpx.Client]:
    """A browser that was let in, as ann."""
    with run_viewer(run, "--name", "ann") as address:
        base = address.split("/?token=")[0]
        with httpx.Client(timeout=60) as browser:
            browser.base_url = httpx.URL(base + enter(browser, browser.get(address)))
            browser.headers["origin"] = base
            yield browser


def test_a_note_is_kept_shown_and_found(run: Path, browser: httpx.Client) -> None:
    first = browser.get("api/episodes/8/notes").json()
    assert first == {"who": "ann", "notes": [], "count": 0, "criteria": ["polite", "paid"], "labels": []}
    asked = {"note": "too fast\n", "labels": ["odd", "look again"], "verdict": "fail", "criteria": {"paid": "fail"}}
    saved = browser.post("api/episodes/8/notes", json=asked)
    assert saved.status_code == 200, saved.text
    (mine,) = saved.json()["notes"]
    assert (mine["who"], mine["note"], mine["verdict"]) == ("ann", "too fast", "fail")
    assert saved.json()["labels"] == ["look again", "odd"]
    append_note(run, Note(episode="steady-judged-0", who="bob", labels=("fine",), verdict="pass"), seen="")
    people = [note["who"] for note in browser.get("api/episodes/8/notes").json()["notes"]]
    assert people == ["ann", "bob"]
    for query in (
        "label:odd",
        'label:"look again"',
        "note:fast",
        "verdict:fail verdict:pass",
        "is:noted",
        "label:FINE",
    ):
        rows = browser.get("api/episodes", params={"q": query}).json()["rows"]
        assert [row["n"] for row in rows] == [8], query
    assert rows[0]["labels"] == ["odd", "look again", "fine"]
    assert browser.get("api/episodes", params={"q": "-is:noted label:odd"}).json()["total"] == 0
    assert read_notes(run)["steady-judged-0"]["ann"].criteria == {"paid": "fail"}


def test_only_the_viewers_own_pages_write(run: Path, browser: httpx.Client) -> None:
    place, good = "api/episodes/1/notes", {"note": "mine"}
    own = browser.headers["origin"]
    foreign: list[dict[str, str]] = [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": own.replace("127.0.0.1", "localhost")},
        {"origin": own, "sec-fetch-site": "cross-site"},
        {"origin": own, "content-type": "text/plain"},
        {"origin": own, "content-type": "application/x-www-form-urlencoded"},
    ]
    for headers in foreign:
        assert browser.post(place, content=json.dumps(good), headers=headers).status_code == 405, headers
    assert browser.request("PUT", place, json=good).status_code == 405
    assert browser.request("DELETE", place).status_code == 405
    assert browser.post("api/about", json=good).status_code == 405
    without = httpx.post(f"{browser.base_url}{place}", json=good, headers={"origin": own}, timeout=60)
    assert without.status_code == 403
    assert not (run / NOTES_FILE).exists()
    assert browser.post(place, json=good, headers={"sec-fetch-site": "same-origin"}).status_code == 200


def test_bad_notes_are_refused_in_one_line_and_lose_nothing(run: Path, browser: httpx.Client) -> None:
    kept = browser.post("api/episodes/1/notes", json={"note": "kept"}).json()["notes"][0]["seen"]
    before = (run / NOTES_FILE).read_bytes()
    seen = {"seen": kept}
    cases: list[tuple[str, Json, str]] = [
        ("1", {"note": "x" * 1_000_000, **seen}, "the note has 1,000,000 characters; the most is 20,000: shorten it"),
        ("1", {"note": "x" * 5_000_000, **seen}, "the note is longer than 4,000,000 bytes: shorten it"),
        ("1", {"note": "\x1b[2J", **seen}, "the note has the control character U+001B at place 1: leave it out"),
        ("1", {"labels": ["a,b"], **seen}, "the label 'a,b' has a quote or a comma: leave it out"),
        ("1", {"criteria": {"paid": "pass"}, **seen}, "the episode has no criterion 'paid'; have none"),
        ("1", {"note": "again"}, "your note on this episode was changed in another window"),
        ("99", {"note": "a"}, "no episode 99"),
        ("x", {"note": "a"}, "'x' is not a number"),
        ("1", {"note": 3}, "a note is an object with note, labels, verdict, criteria and seen, all of them texts"),
        ("1", [], "a note is an object"),
        ("1", {"labels": "odd"}, "a note is an object"),
    ]
    for n, asked, why in cases:
        answer = browser.post(f"api/episodes/{n}/notes", json=asked)
        assert answer.status_code >= 400
        assert answer.json()["error"].startswith(why), answer.text
        assert "\n" not in answer.json()["error"]
    broken = {"content-type": "application/json"}
    assert browser.post("api/episodes/1/notes", content=b"[" * 100_000, headers=broken).status_code == 400
    assert browser.post("api/episodes/1/notes", content=b"\xff", headers=broken).status_code == 400
    assert (run / NOTES_FILE).read_bytes() == before
    (run / NOTES_FILE).unlink()
    (run / NOTES_FILE).mkdir()
    answer = browser.post("api/episodes/1/notes", json={"note": "a"})
    assert (answer.status_code, "is no file" in answer.json()["error"]) == (404, True)
    assert "is no file" in str(browser.get("api/about").json()["runs"][0]["problems"])


def test_notes_stay_on_episodes_that_are_recorded_again(run: Path) -> None:
    append_note(run, Note(episode="steady-task000-0", who="ann", labels=("odd",)), seen="")
    with open_runs([run], follow=False) as runs:
        assert runs.index.page(0, "label:odd", "recorded", 0)["total"] == 1
        with TrajectoryStore.open(run, write=True) as store:
            store.add_grade(replace(store.load("steady-task000-0"), score=0.0), grader="again")
        runs.refresh()
        (row,) = runs.index.page(0, "label:odd", "recorded", 0)["rows"]
        assert (row["score"], row["noted"]) == (0.0, 1)


def row(id: str, **components: float) -> EpisodeRow:
    return EpisodeRow(id=id, env="e", task=id, score=1.0, components=components)


def note(who: str, verdict: str = "", **criteria: str) -> Note:
    return Note(episode="", who=who, verdict=verdict, criteria=criteria)


def test_verdicts_of_people_become_labels() -> None:
    rows = [row(id, **JUDGED) for id in "abcd"]
    notes = {
        "a": {"ann": note("ann", "pass"), "bob": note("bob", "pass", paid="fail")},
        "b": {"ann": note("ann", "pass"), "bob": note("bob", "fail")},
        "c": {"ann": note("ann", polite="pass", paid="fail")},
        "d": {"ann": note("ann", polite="pass")},
        "gone": {"ann": note("ann", "fail")},
    }
    found = collect_verdicts(notes, rows)
    assert [(label.id, label.person) for label in found.labels] == [("a", True), ("c", False), ("gone", False)]
    assert found.problems == ("b: people disagree: ann says pass, bob says fail; name one of them with --by",)
    assert [(each.id, each.person) for each in collect_verdicts(notes, rows, by="bob").labels] == [
        ("a", True), ("b", False),
    ]  # fmt: skip
    assert pair_points(notes, rows) == {"paid": [(False, False)] * 2, "polite": [(True, True)] * 2}


def paid_for(met: bool) -> dict[str, float]:
    return {**JUDGED, "judge.paid": float(met)}


def test_a_judge_is_compared_with_the_runs_own_verdicts(run: Path) -> None:
    with TrajectoryStore.open(run, write=True) as store:
        for n in range(3):
            one = store.load(f"steady-task00{n}-0")
            store.add_grade(replace(one, score=float(n == 0), components=paid_for(n == 0)), grader="judge m")
    none = gymcp("judge", "agreement", run)
    assert isinstance(none.exception, ConfigError)
    assert "no verdict in notes.jsonl can be compared: gymcp view" in str(none.exception)
    for n, verdict in enumerate(("pass", "pass", "fail")):
        append_note(
            run,
            Note(episode=f"steady-task00{n}-0", who="ann", verdict=verdict, criteria={"polite": "pass"}),
            seen="",
        )
    done = gymcp("judge", "agreement", run)
    assert done.exit_code == 0, (done.output, done.exception)
    assert "3 items: both pass 1, only the person 1, only the judge 0, both fail 1" in done.stdout
    assert "point polite: agreement 1.000 of 3 items" in done.stdout
    append_note(run, Note(episode="steady-task000-0", who="bob", verdict="fail"), seen="")
    some = gymcp("judge", "agreement", run, "--json")
    assert (some.exit_code, json.loads(some.stdout)["items"]) == (1, 2)
    assert "people disagree: ann says pass, bob says fail" in some.stderr
    assert json.loads(gymcp("judge", "agreement", run, "--by", "bob", "--json").stdout)["items"] == 1
    other = gymcp("judge", "agreement", run, "--run", run.parent)
    assert "leave it out" in str(other.exception)


def test_the_name_of_the_person_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "eve")
    assert user_name() == "eve"
    monkeypatch.setenv("USER", "\x1b[2J")
    assert user_name().startswith("user ")
    with pytest.raises(ConfigError, match=r"view: --name: the name has the control character U\+000A"):
        read_name("a\nb")
