"""Graders over calls and over files: a right, a wrong, an empty and an unusable record."""

from __future__ import annotations

import pytest

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders import as_target, calls_made, final_files_equal
from gymcp.protocols import Grader
from gymcp.types import Action, Json, Observation, Score, Step, Task, ToolCall, ToolResult, Trajectory

ADD = ToolCall(id="1", name="add", arguments={"a": 1})
END = ToolCall(id="2", name="end", arguments={})


def played(*calls: ToolCall, failed: frozenset[str] = frozenset()) -> Trajectory:
    results = tuple(ToolResult(call_id=call.id, content="", is_error=call.id in failed) for call in calls)
    step = Step(
        turn=0, observation=Observation(messages=(), tools=()), action=Action(tool_calls=calls), results=results
    )
    return Trajectory(id="t", env="e", task="a", steps=(step,) if calls else (), final_state="s")


def score(grader: Grader, target: Json, trajectory: Trajectory, state: Json = None) -> Score:
    return grader(Task(id="a", prompts=("go",), target=target), trajectory, lambda ref: state)


@pytest.mark.parametrize(
    ("trajectory", "value", "reason"),
    [
        (played(ADD, END), 1.0, "every wanted call was made"),
        (played(END, ADD, END), 1.0, "every wanted call was made"),
        (played(END, ADD), 0.0, "call 2 of 2 was not made: end({})"),
        (played(ADD), 0.0, "call 2 of 2 was not made: end({})"),
        (played(ADD, END, failed=frozenset({"2"})), 0.0, "call 2 of 2 was not made: end({})"),
        (played(), 0.0, 'call 1 of 2 was not made: add({"a": 1})'),
        (
            played(ToolCall(id="1", name="add", arguments='{"a": 1'), END),
            0.0,
            'call 1 of 2 was not made: add({"a": 1})',
        ),
    ],
)
def test_calls_made(trajectory: Trajectory, value: float, reason: str) -> None:
    found = score(calls_made(), as_target([ADD, END]), trajectory)
    assert (found.value, found.reason) == (value, reason)
    assert score(calls_made(target_key="calls"), {"calls": as_target([ADD, END])}, trajectory).value == value


def test_calls_made_in_any_order_with_more_arguments_or_with_errors() -> None:
    target = as_target([ADD, END])
    assert score(calls_made(in_order=False), target, played(END, ADD)).value == 1.0
    assert score(calls_made(must_succeed=False), target, played(ADD, END, failed=frozenset({"2"}))).value == 1.0
    more = ToolCall(id="1", name="add", arguments={"a": 1, "note": "one"})
    assert score(calls_made(), target, played(more, END)).value == 0.0
    assert score(calls_made(more_arguments=True), target, played(more, END)).value == 1.0
    assert score(calls_made(more_arguments=True), target, played(ToolCall(id="1", name="add"), END)).value == 0.0


@pytest.mark.parametrize("target", [None, [], {"calls": []}, [{"name": "add"}], ["add"]])
def test_a_target_that_is_no_list_of_calls_says_nothing_about_the_agent(target: Json) -> None:
    with pytest.raises(GraderError):
        score(calls_made(), target, played(ADD))
    with pytest.raises(ConfigError):
        as_target([ToolCall(id="1", name="add", arguments="{")])


FILES = {
    "a.txt": {"type": "file", "mode": "644", "text": "one"},
    "full": {"type": "folder", "mode": "755"},
    "full/b.txt": {"type": "file", "mode": "600", "text": "two"},
    "empty": {"type": "folder", "mode": "755"},
}
WANTED = {"a.txt": "one", "full/b.txt": "two", "empty": None}


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
def test_final_files_equal(files: Json, value: float, reason: str) -> None:
    found = score(final_files_equal(), WANTED, played(ADD), {"files": files})
    assert found.value == value
    assert found.reason.startswith(reason)


@pytest.mark.parametrize("state", [None, {}, {"accounts": {}}, "files"])
def test_a_state_without_files_says_nothing_about_the_agent(state: Json) -> None:
    with pytest.raises(GraderError, match="no files were recorded"):
        score(final_files_equal(), WANTED, played(ADD), state)
    with pytest.raises(GraderError, match="the target has no 'files'"):
        score(final_files_equal(target_key="files"), {}, played(ADD), {"files": {}})
    with pytest.raises(GraderError, match="not a mapping of files"):
        score(final_files_equal(), [], played(ADD), {"files": {}})
