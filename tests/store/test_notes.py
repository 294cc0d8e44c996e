"""Notes of people in a run folder."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from gymcp.errors import StoreError
from gymcp.store.notes import (
    MAX_FILE_BYTES,
    NOTES_FILE,
    InvalidNote,
    Note,
    NoteChanged,
    append_note,
    read_notes,
)


def note(**fields: object) -> Note:
    return Note(**{"episode": "e1", "who": "ann", "note": "looks wrong", **fields})  # type: ignore[arg-type]


def test_the_newest_note_of_each_person_counts_and_all_are_kept(tmp_path: Path) -> None:
    first = append_note(tmp_path, note(labels=("a", "b", " a ")), seen="")
    other = append_note(tmp_path, note(who="bob", verdict="fail", criteria={"asks": "pass", "pays": ""}), seen="")
    second = append_note(tmp_path, note(note=" all\r\nwell ", verdict="pass"), seen=first.at)
    assert (first.labels, other.criteria, second.note) == (("a", "b"), {"asks": "pass"}, "all\nwell")
    assert read_notes(tmp_path) == {"e1": {"ann": second, "bob": other}}
    assert len((tmp_path / NOTES_FILE).read_text().splitlines()) == 3


def test_an_empty_note_withdraws_what_was_said(tmp_path: Path) -> None:
    first = append_note(tmp_path, note(), seen="")
    append_note(tmp_path, note(note=""), seen=first.at)
    assert read_notes(tmp_path) == {}
    assert read_notes(tmp_path / "absent") == {}


def test_a_note_that_was_changed_elsewhere_is_not_replaced(tmp_path: Path) -> None:
    first = append_note(tmp_path, note(), seen="")
    append_note(tmp_path, note(note="second window"), seen=first.at)
    with pytest.raises(NoteChanged, match="changed in another window"):
        append_note(tmp_path, note(note="first window"), seen=first.at)
    assert read_notes(tmp_path)["e1"]["ann"].note == "second window"


def test_people_who_write_at_once_lose_nothing(tmp_path: Path) -> None:
    def write(who: str) -> None:
        for n in range(20):
            append_note(tmp_path, note(who=who, episode=f"e{n}", note=f"{who} {n} " + "x" * 5000), seen="")

    people = [threading.Thread(target=write, args=(f"person {n}",)) for n in range(5)]
    for each in people:
        each.start()
    for each in people:
        each.join()
    found = read_notes(tmp_path)
    assert [len(found[f"e{n}"]) for n in range(20)] == [5] * 20


@pytest.mark.parametrize("cut", [1, 10, 60])
def test_a_cut_last_line_is_skipped_and_the_next_note_is_whole(tmp_path: Path, cut: int) -> None:
    first = append_note(tmp_path, note(), seen="")
    append_note(tmp_path, note(who="bob"), seen="")
    file = tmp_path / NOTES_FILE
    file.write_bytes(file.read_bytes()[: -cut - 1])
    assert read_notes(tmp_path)["e1"]["ann"] == first
    append_note(tmp_path, note(who="eve"), seen="")
    assert {"ann", "eve"} <= set(read_notes(tmp_path)["e1"])


def test_invalid_lines_are_skipped(tmp_path: Path) -> None:
    good = append_note(tmp_path, note(), seen="")
    line = json.loads((tmp_path / NOTES_FILE).read_text())
    bad = [
        "", "null", "[]", "7", "{", "[" * 100_000, "\xff\xfe", {}, line | {"format": 2}, line | {"labels": [1]},
        line | {"labels": 3}, line | {"criteria": []}, line | {"verdict": "maybe"}, line | {"note": "x" * 30_000},
        line | {"who": "\x1b[2J"}, line | {"note": None},
    ]  # fmt: skip
    with (tmp_path / NOTES_FILE).open("a", encoding="latin-1") as file:
        for each in bad:
            file.write((each if isinstance(each, str) else json.dumps(each)) + "\n")
    assert read_notes(tmp_path) == {"e1": {"ann": good}}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"note": "x" * 1_000_000}, "the note has 1,000,000 characters; the most is 20,000: shorten it"),
        ({"note": "a\x1b[2J"}, r"the note has the control character U\+001B at place 2: leave it out"),
        ({"note": "a\ud800"}, r"U\+D800"),
        ({"labels": ("a\nb",)}, r"the label has the control character U\+000A"),
        ({"labels": ("x" * 61,)}, "has 61 characters; the most is 60"),
        ({"labels": ('say "x"',)}, "has a quote or a comma"),
        ({"labels": tuple(map(str, range(21)))}, "21 labels; the most is 20"),
        ({"who": " "}, "the name is empty"),
        ({"verdict": "maybe"}, "the verdict is 'maybe'; have pass, fail, or empty for none"),
        ({"criteria": {"asks": "x"}}, "the verdict is 'x'"),
    ],
)
def test_an_invalid_note_changes_nothing(tmp_path: Path, fields: dict[str, object], why: str) -> None:
    append_note(tmp_path, note(who="bob"), seen="")
    before = (tmp_path / NOTES_FILE).read_bytes()
    with pytest.raises(InvalidNote, match=why) as raised:
        append_note(tmp_path, note(**fields), seen="")
    assert "\n" not in str(raised.value)
    assert (tmp_path / NOTES_FILE).read_bytes() == before


def test_a_link_a_pipe_and_a_full_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("")
    (tmp_path / NOTES_FILE).symlink_to(tmp_path / "target")
    with pytest.raises(StoreError, match="is a link"):
        append_note(tmp_path, note(), seen="")
    assert (tmp_path / "target").read_text() == ""
    (tmp_path / NOTES_FILE).unlink()
    os.mkfifo(tmp_path / NOTES_FILE)
    with pytest.raises(StoreError, match="is no file"):
        append_note(tmp_path, note(), seen="")
    (tmp_path / NOTES_FILE).unlink()
    with (tmp_path / NOTES_FILE).open("wb") as file:
        file.truncate(MAX_FILE_BYTES)
    with pytest.raises(StoreError, match="would be longer than"):
        append_note(tmp_path, note(), seen="")


def test_an_unwritable_folder_is_reported(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=rf"run folder .*: {NOTES_FILE} cannot be written: No such file or directory"):
        append_note(tmp_path / "absent", note(), seen="")
