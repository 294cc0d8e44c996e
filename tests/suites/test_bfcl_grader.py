from __future__ import annotations

import pytest

from gymcp.errors import GraderError
from gymcp.evaluators.graders.bfcl import PlayedTurn, grade, judge, make_target
from gymcp.types import Action, Json, Observation, Step, Task, ToolCall, ToolResult, Trajectory

SEEN = Observation(messages=(), tools=())


def _turn(*responses: str, **box: Json) -> PlayedTurn:
    return PlayedTurn(acted=bool(responses), responses=responses, state={"Box": box})


TARGET = make_target([_turn("ok", n=1), None, _turn("ok", "ok", n=2)])
"""Two graded turns with one between in which nothing should be done."""


def test_the_gold_passes() -> None:
    score = judge(TARGET, [_turn("ok", n=1), _turn(n=1), _turn("ok", "ok", n=2)])
    assert score.value == 1.0
    assert score.components == {"turns_passed": 1.0, "did_not_act": 1.0}
    assert score.reason == ""


def test_a_wrong_state_fails_and_is_named() -> None:
    score = judge(TARGET, [_turn("ok", n=1), _turn(n=1), _turn("ok", "ok", n=5)])
    assert score.value == 0.0
    assert score.components == {"turns_passed": 0.5, "did_not_act": 1.0}
    assert score.reason == "turn 3 of 3: Box.n differs: expected 2, found 5"


def test_the_first_difference_inside_a_value_is_named() -> None:
    target = make_target([_turn("ok", tree={"$directory": ["a", {"f": {"$file": ["f", "old"]}}]})])
    changed = judge(target, [_turn("ok", tree={"$directory": ["a", {"f": {"$file": ["f", "new"]}}]})])
    removed = judge(target, [_turn("ok", tree={"$directory": ["a", {}]})])
    assert changed.reason == "turn 1 of 1: Box.tree.f differs: expected old, found new"
    assert removed.reason == "turn 1 of 1: Box.tree.f is missing"


def test_a_turn_without_a_call_fails_if_gold_calls() -> None:
    assert judge(TARGET, [_turn(n=1), _turn(n=1), _turn("ok", n=2)]).reason == "turn 1 of 3: no tool was called"


def test_calls_in_a_turn_with_empty_gold_are_not_graded_but_counted() -> None:
    score = judge(TARGET, [_turn("ok", n=1), _turn("ok", n=7), _turn("ok", n=2)])
    assert (score.value, score.components["did_not_act"]) == (1.0, 0.0)


def test_responses_count_as_often_as_gold_has_them_over_all_turns_so_far() -> None:
    once = make_target([_turn("ok", "ok", n=1)])
    assert judge(once, [_turn("ok", n=1)]).reason == "turn 1 of 1: no call has answered ok"
    assert judge(once, [_turn("ok", "other", "ok", n=1)]).value == 1.0
    assert judge(TARGET, [_turn("ok", n=1), _turn(n=1), _turn("ok", n=2)]).value == 1.0  # the other is from turn 1


def test_an_episode_that_broke_off_fails_even_if_the_rest_is_empty() -> None:
    target = make_target([_turn("ok", n=1), None])
    assert judge(target, [_turn("ok", n=1)]).reason == "turn 2 of 2: the episode ended before it"
    assert judge(target, []).components == {"turns_passed": 0.0, "did_not_act": 0.0}


@pytest.mark.parametrize("size", [1, 3000])
def test_values_are_equal_as_upstreams_python_finds_them(size: int) -> None:
    target = make_target([_turn("ok", value={"a": [1] * size, "b": 0.0})])
    assert judge(target, [_turn("ok", value={"b": False, "a": [1.0] * size})]).value == 1.0
    assert judge(target, [_turn("ok", value={"b": 0, "a": [1.0] * (size - 1) + ["1"]})]).value == 0.0


def test_the_state_of_a_turn_is_the_one_after_its_last_step() -> None:
    call = ToolCall(id="1", name="add")
    steps = (
        Step(turn=0, observation=SEEN, action=Action(tool_calls=(call,)), results=(_says("ok"),), state_ref="before"),
        Step(turn=0, observation=SEEN, action=Action(text="Done."), state_ref="after"),
    )
    states = {"before": {"public": {"Box": {"n": 0}}}, "after": {"public": {"Box": {"n": 1}}}}
    task = Task(id="t", prompts=("Add.",), target=make_target([_turn("ok", n=1)]))
    assert grade(task, Trajectory(id="x", env="e", task="t", steps=steps), states.__getitem__).value == 1.0


def test_a_call_with_unreadable_arguments_is_no_call() -> None:
    call = ToolCall(id="1", name="add", arguments="{not json")
    steps = (Step(turn=0, observation=SEEN, action=Action(tool_calls=(call,)), results=(_says("no"),), state_ref="s"),)
    task = Task(id="t", prompts=("Add.",), target=make_target([_turn("ok", n=1)]))
    score = grade(task, Trajectory(id="x", env="e", task="t", steps=steps), dict[str, Json]().__getitem__)
    assert score.reason == "turn 1 of 1: no tool was called"


@pytest.mark.parametrize("ref", [None, "lost"])
def test_a_record_without_its_state_is_the_harnesss_failure_and_no_score(ref: str | None) -> None:
    call = ToolCall(id="1", name="add")
    steps = (Step(turn=0, observation=SEEN, action=Action(tool_calls=(call,)), results=(_says("ok"),), state_ref=ref),)
    task = Task(id="t", prompts=("Add.",), target=make_target([_turn("ok", n=1)]))
    with pytest.raises(GraderError, match="state"):
        grade(task, Trajectory(id="x", env="e", task="t", steps=steps), dict[str, Json]().__getitem__)


def _says(text: str) -> ToolResult:
    return ToolResult(call_id="1", content=text)
