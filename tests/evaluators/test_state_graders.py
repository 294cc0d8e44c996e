"""Graders of the final state and of files: the reasons that they give, and what they read in a state."""

from __future__ import annotations

import hashlib

import pytest
from trajectories import episode, verdict

from gymcp.errors import GraderError
from gymcp.evaluators.graders import (
    NoValue,
    final_bytes,
    final_files_equal,
    final_state_equals,
    final_values_include,
    state_changes,
)
from gymcp.evaluators.grading import apply_grader
from gymcp.outcome import Outcome
from gymcp.protocols import StateReader
from gymcp.types import Json, Score, Task, Trajectory

ORDERS = {"orders": [{"id": 7, "status": "paid"}]}


@pytest.mark.parametrize(
    ("state", "value", "reason"),
    [
        (ORDERS, 1.0, "the final state is the wanted one"),
        (
            {"orders": [{"id": 7, "status": "open"}]},
            0.0,
            'in the final state orders.0.status is "open", wanted "paid"',
        ),
        ({}, 0.0, 'in the final state orders is missing, wanted [{"id": 7, "status": "paid"}]'),
        (None, 0.0, 'in the final state it is null, wanted {"orders": [{"id": 7, "status": "paid"}]}'),
        ("<html>", 0.0, 'in the final state it is "<html>", wanted {"orders": [{"id": 7, "status": "paid"}]}'),
        ({**ORDERS, "spam": 1}, 0.0, "in the final state spam is 1, wanted nothing there"),
        ({"orders": []}, 0.0, "in the final state orders has 0 items, wanted 1"),
    ],
)
def test_the_final_state_is_compared_and_the_first_difference_is_the_reason(
    state: Json, value: float, reason: str
) -> None:
    assert verdict(final_state_equals(), ORDERS, state=state) == Score(value=value, reason=reason)
    assert verdict(final_state_equals(target_key="end"), {"end": ORDERS}, state=state).value == value


def test_a_state_that_was_not_recorded_says_nothing_about_the_agent() -> None:
    task = Task(id="a", prompts=("go",), target=ORDERS)
    states: dict[str, Json] = {}
    for final_state, why in ((None, "no final state was recorded"), ("gone", "KeyError: 'gone'")):
        graded = apply_grader(final_state_equals(), task, episode(final_state=final_state), states.__getitem__)
        assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
        assert why in graded.reason


BEFORE = {"orders": {"7": "open", "8": "open"}, "log": ["start"], "a/b": 1}


@pytest.mark.parametrize(
    ("target", "end", "value", "components", "reason"),
    [
        (
            {"set": {"/orders/7": "paid"}},
            {**BEFORE, "orders": {"7": "paid", "8": "open"}},
            1.0,
            {"wanted_changes": 1.0, "collateral": 0.0},
            "the world changed as wanted, and nothing else did",
        ),
        (
            {"set": {"/orders/7": "paid"}, "removed": ["/a~1b"]},
            {**BEFORE, "orders": {"7": "paid", "8": "gone"}},
            0.0,
            {"wanted_changes": 0.5, "collateral": 1.0},
            '/a~1b is 1, wanted nothing; /orders/8 was "open" and is "gone", which nobody asked for',
        ),
        (
            {"set": {"/orders/9": "new"}, "may_change": ["/log*"]},
            {**BEFORE, "orders": {**BEFORE["orders"], "9": "new"}, "log": ["start", "end"]},  # type: ignore[dict-item]
            1.0,
            {"wanted_changes": 1.0, "collateral": 0.0},
            "the world changed as wanted, and nothing else did",
        ),
        (
            {"set": {"/log/1": "end"}},
            {**BEFORE, "log": ["start", "end", "and more"]},
            0.0,
            {"wanted_changes": 1.0, "collateral": 1.0},
            '/log was ["start"] and is ["start", "end", "and more"], which nobody asked for',
        ),
        (
            {"removed": ["/log/0"]},
            {**BEFORE, "log": []},
            1.0,
            {"wanted_changes": 1.0, "collateral": 0.0},
            "the world changed as wanted, and nothing else did",
        ),
    ],
)
def test_expected_changes_are_distinguished_from_collateral_ones(
    target: Json, end: Json, value: float, components: dict[str, float], reason: str
) -> None:
    found = verdict(state_changes(), target, state=end, initial=BEFORE)
    assert found == Score(value=value, components=components, reason=reason)


FILES = {
    "a.txt": {"type": "file", "mode": "644", "text": "one"},
    "full": {"type": "folder", "mode": "755"},
    "full/b.txt": {"type": "file", "mode": "600", "text": "two"},
    "empty": {"type": "folder", "mode": "755"},
}
EXPECTED_FILES = {"a.txt": "one", "full/b.txt": "two", "empty": None}


@pytest.mark.parametrize(
    ("files", "value", "reason"),
    [
        (FILES, 1.0, "every file is as wanted"),
        (
            {**FILES, "a.txt": {"type": "file", "mode": "644", "text": "1"}},
            0.0,
            'at the end a.txt is "1", wanted "one"',
        ),
        ({**FILES, "c": {"type": "link", "mode": "777", "target": "a.txt"}}, 0.0, "at the end c is "),
        ({}, 0.0, "at the end a.txt is missing"),
        ({**FILES, "a.txt": {"type": "file", "mode": "644", "sha256": "00", "size": 9}}, 0.0, "at the end a.txt is {"),
    ],
)
def test_files_are_compared_by_path_and_text(files: Json, value: float, reason: str) -> None:
    score = verdict(final_files_equal(), EXPECTED_FILES, state={"files": files})
    assert score.value == value
    assert score.reason.startswith(reason)


VALUES = {
    "a.csv": {"type": "file", "mode": "644", "reader": "csv", "value": [["a"], ["7"]]},
    "bad.csv": {"type": "file", "mode": "644", "reader": "csv", "unreadable": "it has no rows"},
    "long.csv": {"type": "file", "mode": "644", "sha256": "00", "size": 9, "reader": "csv", "cut": "it has 9 bytes"},
    "b.txt": {"type": "file", "mode": "644", "sha256": "00", "size": 9},
}


@pytest.mark.parametrize(
    ("target", "value", "reason"),
    [
        ({"a.csv": [["a"], ["7"]]}, 1.0, "the files have all that is wanted"),
        ({"a.csv": [["a"], ["8"]]}, 0.0, 'at the end a.csv.1.0 is "7", wanted "8"'),
        ({"none.csv": []}, 0.0, "at the end none.csv is missing"),
        ({"bad.csv": []}, 0.0, "at the end bad.csv cannot be read as csv: it has no rows"),
        (
            {"long.csv": []},
            0.0,
            "at the end long.csv was not recorded: it has 9 bytes; if a right file is so large, raise "
            "FileState(recorded_file_bytes=..., recorded_bytes=...) of the server and run again",
        ),
    ],
)
def test_values_of_readers_are_compared(target: Json, value: float, reason: str) -> None:
    score = verdict(final_values_include(), target, state={"files": VALUES})
    assert (score.value, score.reason) == (value, reason)


def test_a_file_without_a_reader_says_nothing_about_the_agent() -> None:
    with pytest.raises(GraderError, match=r"file 'b\.txt': has no reader: declare one"):
        verdict(final_values_include(), {"b.txt": []}, state={"files": VALUES})


def test_a_file_of_which_only_the_hash_was_recorded_is_compared_by_it() -> None:
    cut = {"type": "file", "mode": "644", "sha256": hashlib.sha256(b"one").hexdigest(), "size": 3}
    assert verdict(final_files_equal(), {"a": "one"}, state={"files": {"a": cut}}).value == 1.0


def test_the_bytes_of_a_file_that_is_gone_or_was_cut_are_no_value_with_its_reason() -> None:
    files = {**VALUES, "c": {"type": "file", "mode": "644", "base64": "/wA="}}
    found: list[bytes | NoValue] = []

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        found.extend(final_bytes(trajectory, states, path) for path in ("c", "gone", "b.txt"))
        return Score(value=0.0)

    verdict(grade, None, state={"files": files})
    *values, cut = found
    assert values == [b"\xff\x00", NoValue("is missing")]
    assert isinstance(cut, NoValue)
    assert cut.reason.startswith("was not recorded: it has 9 bytes; if a right file is so large, raise FileState(")


@pytest.mark.parametrize("state", [None, {}, {"accounts": {}}, "files"])
def test_a_state_without_files_says_nothing_about_the_agent(state: Json) -> None:
    with pytest.raises(GraderError, match="no files were recorded"):
        verdict(final_files_equal(), EXPECTED_FILES, state=state)
