from __future__ import annotations

import pytest

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders import all_of, answer_equals, final_state_equals
from gymcp.evaluators.graders.answers import final_answer, normalise_answer
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.json_diff import brief, first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Action, Json, Observation, Outcome, Score, Step, Task, ToolCall, Trajectory

LOOK = ToolCall(id="c", name="look")


def step(text: str, *calls: ToolCall, valid: bool = True) -> Step:
    return Step(
        turn=0, observation=Observation(messages=(), tools=()), action=Action(text=text, tool_calls=calls), valid=valid
    )


def grade(grader: Grader, target: Json, *steps: Step, state: Json = None) -> Score:
    task = Task(id="a", prompts=("go",), target=target)
    played = Trajectory(id="1", env="e", task="a", steps=steps, final_state="s")
    return grader(task, played, states(s=state))


def states(**recorded: Json) -> StateReader:
    def read(ref: str) -> Json:
        return recorded[ref]

    return read


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
def test_final_state_equals(state: Json, value: float, reason: str) -> None:
    assert grade(final_state_equals(), ORDERS, state=state) == Score(value=value, reason=reason)
    assert grade(final_state_equals(target_key="end"), {"end": ORDERS}, state=state).value == value


def test_a_state_that_was_not_recorded_says_nothing_about_the_agent() -> None:
    task = Task(id="a", prompts=("go",), target=ORDERS)
    for final_state, why in ((None, "no final state was recorded"), ("gone", "KeyError: 'gone'")):
        played = Trajectory(id="1", env="e", task="a", final_state=final_state)
        graded = apply_grader(final_state_equals(), task, played, states())
        assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
        assert why in graded.reason


def test_a_target_without_the_key_is_a_defect_of_the_suite() -> None:
    for target in ({"other": 1}, None, "end"):
        with pytest.raises(GraderError, match="task 'a': the target has no 'end'"):
            grade(final_state_equals(target_key="end"), target)


@pytest.mark.parametrize(
    ("found", "wanted", "difference"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, None),
        (1, 1.0, None),
        (float("nan"), float("nan"), None),
        ([1, 2], (1, 2), None),
        (True, 1, "it is true, wanted 1"),
        (0, False, "it is 0, wanted false"),
        (None, 0, "it is null, wanted 0"),
        ("1", 1, 'it is "1", wanted 1'),
        ([1, 2], [2, 1], "0 is 1, wanted 2"),
        ({}, [], "it is {}, wanted []"),
        ([[{"x": 1}]], [[{"x": 2}]], "0.0.x is 1, wanted 2"),
    ],
)
def test_first_difference_is_that_of_json(found: Json, wanted: Json, difference: str | None) -> None:
    assert first_difference(found, wanted) == difference


def test_a_long_value_is_cut_and_the_cut_is_marked() -> None:
    assert brief("x" * 1000) == '"' + "x" * 119 + "... (1002 characters)"


@pytest.mark.parametrize(
    ("said", "value", "exact"),
    [
        ("Order 7 is paid", 1.0, 1.0),
        ("  order 7\n is PAID. ", 1.0, 0.0),
        ('"Order 7 is paid."', 1.0, 0.0),
        ("Ｏrder 7 is paid", 1.0, 0.0),
        ("Order 8 is paid", 0.0, 0.0),
        ("Order 7 is not paid", 0.0, 0.0),
        ("", 0.0, 0.0),
        ("...", 0.0, 0.0),
        ('{"answer": ', 0.0, 0.0),
        ("\ud800\x00", 0.0, 0.0),
    ],
)
def test_answer_equals(said: str, value: float, exact: float) -> None:
    steps = (step("let me look", LOOK), step(said))
    assert grade(answer_equals(), "Order 7 is paid", *steps).value == value
    assert grade(answer_equals(exact=True), "Order 7 is paid", *steps).value == exact


def test_an_answer_says_what_it_was_and_what_it_should_have_been() -> None:
    assert grade(answer_equals(), ["7", "seven"], step("8")) == Score(
        value=0.0, reason='the answer is "8", wanted "7" or "seven"'
    )
    assert grade(answer_equals(target_key="text"), {"text": "7"}, step("7")) == Score(
        value=1.0, reason='the answer is "7", as wanted'
    )


@pytest.mark.parametrize("steps", [(), (step("7", LOOK),), (step("7", valid=False),)])
def test_an_agent_that_never_spoke_is_wrong(steps: tuple[Step, ...]) -> None:
    assert grade(answer_equals(), "7", *steps) == Score(value=0.0, reason="the agent never spoke")


@pytest.mark.parametrize("target", [None, 7, [], [7], "", "'.'", ["7", " "], {"text": "7"}])
def test_a_target_that_is_no_text_is_a_defect_of_the_suite(target: Json) -> None:
    with pytest.raises(GraderError, match="the target"):
        grade(answer_equals(), target, step(""))


def test_the_last_words_are_those_without_a_call() -> None:
    steps = (step("first"), step("second"), step("calling", LOOK), step("", valid=False))
    assert final_answer(Trajectory(id="1", env="e", task="a", steps=steps)) == "second"


def test_normalising_twice_changes_nothing() -> None:
    for text in ("'A  b.'", " ``X'' ", "1.000,5", "a..", "'.5'.'", "ﬁne"):
        assert normalise_answer(normalise_answer(text)) == normalise_answer(text)


BOTH = all_of({"state": final_state_equals(target_key="state"), "answer": answer_equals(target_key="answer")})
TARGET = {"state": {"n": 1}, "answer": "done"}


@pytest.mark.parametrize(
    ("state", "said", "components"),
    [
        ({"n": 1}, "Done.", {"state": 1.0, "answer": 1.0}),
        ({"n": 2}, "Done.", {"state": 0.0, "answer": 1.0}),
        ({}, "", {"state": 0.0, "answer": 0.0}),
        ("<html>", "\ud800{", {"state": 0.0, "answer": 0.0}),
    ],
)
def test_all_of(state: Json, said: str, components: dict[str, float]) -> None:
    score = grade(BOTH, TARGET, step(said), state=state)
    assert (score.value, score.components) == (min(components.values()), components)


def test_all_of_says_first_what_was_wrong_and_keeps_inner_components() -> None:
    outer = all_of({"both": BOTH})
    assert grade(outer, TARGET, step("no"), state={"n": 1}) == Score(
        value=0.0,
        components={"both": 0.0, "both.state": 1.0, "both.answer": 0.0},
        reason='both: answer: the answer is "no", wanted "done"; state: the final state is the wanted one',
    )


def test_all_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="no graders"):
        all_of({})
