"""What graders say, what they give in part, and what they refuse as a defect of the suite."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from played import acted, call, episode, no_states, said, verdict

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders import (
    answer_equals,
    answer_fits_schema,
    answer_has_format,
    answer_includes_json,
    answer_is_number,
    any_of,
    calls_alike,
    calls_made,
    dynamic,
    milestones,
    state_changes,
    weighted,
)
from gymcp.evaluators.graders.answers import last_number, read_json
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.graders.patterns import answer_matches
from gymcp.evaluators.graders.registry import BY_NAME, make_grader
from gymcp.evaluators.grading import apply_grader
from gymcp.evaluators.json_diff import STATE_RULE, differences, first_difference
from gymcp.protocols import Grader
from gymcp.types import Json, Outcome, Score, Task

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("42", 42.0),
        ("about 1,234,567.5 in all.", 1234567.5),
        ("from 3 to 4", 4.0),
        ("3-4", 4.0),
        ("\N{MINUS SIGN}2.5e3 K", -2500.0),
        ("\N{FULLWIDTH DIGIT SEVEN}", 7.0),
        (".5", 0.5),
        ("version 1.2.3", 1.2),
        ("room x7", None),
        ("none", None),
        ("", None),
    ],
)
def test_the_last_number_is_read(text: str, number: float | None) -> None:
    assert last_number(text) == number


@given(st.integers(-(10**12), 10**12))
def test_a_number_is_read_however_it_is_grouped(number: int) -> None:
    assert last_number(f"{number:,}") == last_number(f"= {number}.") == number


@given(JSON)
def test_json_is_read_with_a_fence_or_without(value: Json) -> None:
    text = json.dumps(value)
    assert read_json(text) == read_json(f"Well:\n```json\n{text}\n```\nthat is it") == value


@given(JSON)
def test_everything_includes_itself_and_an_object_with_more_keys_includes_it(value: Json) -> None:
    assert first_difference(value, value, more_keys=True) is None
    if isinstance(value, dict):
        assert first_difference({**value, "new": 1}, value, more_keys=True) is None
        assert first_difference({**value, "new": 1}, value) is not None


@given(JSON, JSON)
def test_there_are_changes_exactly_where_two_states_differ(old: Json, new: Json) -> None:
    changes = list(differences(old, new, STATE_RULE))
    assert bool(changes) == (first_difference(old, new) is not None)
    assert len({change.path for change in changes}) == len(changes)


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
def test_changes_are_told_from_collateral_damage(
    target: Json, end: Json, value: float, components: dict[str, float], reason: str
) -> None:
    found = verdict(state_changes(), target, state=end, initial=BEFORE)
    assert found == Score(value=value, components=components, reason=reason)


@pytest.mark.parametrize(
    "target",
    [None, {}, {"sets": {}}, {"set": []}, {"set": {"no slash": 1}}, {"may_change": ["/x"]}, {"set": {"/log/7": 1}}],
)
def test_a_target_that_is_no_change_is_a_defect_of_the_suite(target: Json) -> None:
    with pytest.raises(GraderError, match="target"):
        verdict(state_changes(), target, state=BEFORE, initial=BEFORE)


def test_calls_are_compared_argument_by_argument() -> None:
    target = [
        {"name": "pay", "arguments": {"order": 7, "by": "card"}},
        {"name": "mail", "arguments": {"to": "ann"}},
    ]
    made = acted(call("pay", order=8, by="card"), call("pay", "2", order=7, by="cash", tip=1), call("look"))
    assert verdict(calls_alike(), target, made) == Score(
        value=0.25,  # the nearest of the two has one of two arguments; nobody mailed
        components={"tools": 0.5, "arguments": 0.5},
        reason='no call stands for mail({"to": "ann"})',
    )
    both = acted(call("pay", order=7, by="card"), call("mail", to="bob"))
    assert verdict(calls_alike(), target, both) == Score(
        value=0.5,
        components={"tools": 1.0, "arguments": 0.5},
        reason='mail({"to": "bob"}) stands for mail({"to": "ann"})',
    )


GRAPH = {
    "milestones": [
        {"name": "told", "says": "paid", "after": ["paid", "mailed"]},
        {"name": "paid", "state": {"order": "paid"}, "after": ["found"]},
        {"name": "mailed", "call": {"name": "mail", "arguments": {}}, "after": ["found"]},
        {"name": "found", "call": {"name": "find", "arguments": {"id": 7}}},
    ],
    "minefields": [{"name": "deleted", "call": {"name": "delete", "arguments": {}}}],
}
STATES = {"open": {"order": "open"}, "paid": {"order": "paid", "by": "card"}}
FIND = acted(call("find", id=7), state_ref="open")
PAY = acted(call("pay"), state_ref="paid")
MAIL = acted(call("mail", to="ann"), state_ref="open")
TELL = said("It is PAID now.", state_ref="paid")


@pytest.mark.parametrize(
    ("steps", "value", "reason"),
    [
        ((FIND, PAY, MAIL, TELL), 1.0, "all 4 milestones were passed"),
        ((FIND, MAIL, PAY, TELL), 1.0, "all 4 milestones were passed"),
        ((PAY, MAIL, TELL), 0.0, "'found' did not happen; 'paid' needs 'found' first; 'mailed' needs 'found' first"),
        ((MAIL, FIND, PAY, TELL), 0.5, "'mailed' did not happen after 'found'; 'told' needs 'mailed' first"),
        ((TELL, FIND, MAIL, PAY), 0.75, "'told' did not happen after 'mailed'"),
        ((FIND, PAY, MAIL, TELL, acted(call("delete"), state_ref="open")), 0.0, "'deleted' must not happen, and did"),
        ((), 0.0, "'found' did not happen"),
    ],
)
def test_milestones_in_any_order_that_their_dependencies_allow(
    steps: tuple[object, ...], value: float, reason: str
) -> None:
    found = verdict(milestones(), GRAPH, *steps, states=STATES)  # type: ignore[arg-type]
    assert found.value == value
    assert found.reason.startswith(reason)


def test_a_milestone_is_not_passed_in_the_moment_of_the_one_before_it() -> None:
    twice = {
        "milestones": [
            {"name": "first", "call": {"name": "pay", "arguments": {}}},
            {"name": "second", "call": {"name": "pay", "arguments": {}}, "after": ["first"]},
        ]
    }
    assert verdict(milestones(), twice, acted(call("pay"))).value == 0.5
    assert verdict(milestones(), twice, acted(call("pay", "1"), call("pay", "2"))).value == 1.0


@pytest.mark.parametrize(
    ("target", "why"),
    [
        (None, "not an object with milestones"),
        ({"milestones": []}, "no milestones"),
        ({"milestones": [{"name": "a", "says": "x", "after": ["b"]}]}, "comes after 'b', which is no milestone"),
        ({"milestones": [{"name": "a", "says": "x"}, {"name": "a", "says": "y"}]}, "two milestones of one name"),
        (
            {"milestones": [{"name": "a", "says": "x", "after": ["b"]}, {"name": "b", "says": "x", "after": ["a"]}]},
            "in a circle",
        ),
        ({"milestones": [{"name": "a"}]}, "has not a name and one of"),
        ({"milestones": [{"name": "a", "says": " "}]}, "waits for an empty text"),
        ({"milestones": [{"name": "a", "call": {"name": "x"}}]}, "is not a call"),
        ({"milestones": [{"name": "a", "state": {}}]}, "none was recorded"),
    ],
)
def test_milestones_that_make_no_sense_are_a_defect_of_the_suite(target: Json, why: str) -> None:
    with pytest.raises(GraderError, match=why):
        verdict(milestones(), target, said("hello"))


def test_any_and_weighted_say_every_reason() -> None:
    graders = {"text": answer_equals(), "form": answer_has_format("a number")}
    assert verdict(any_of(graders), "8", said("7")) == Score(
        value=1.0,
        components={"text": 0.0, "form": 1.0},
        reason='text: the answer is "7", wanted "8"; form: the answer is a number, as wanted',
    )
    assert verdict(weighted(graders, {"text": 3, "form": 1}), "8", said("7")).value == 0.25


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=6))
def test_weights_make_a_success_of_successes_only(weights: list[float]) -> None:
    def gives(value: float) -> Grader:
        return lambda task, trajectory, states: Score(value=value)

    names = [str(n) for n in range(len(weights))]
    by_name = dict(zip(names, weights, strict=True))
    assert verdict(weighted(dict.fromkeys(names, gives(1.0)), by_name), None).value == 1.0
    almost = {**dict.fromkeys(names, gives(1.0)), names[0]: gives(1 - 1e-12)}
    assert verdict(weighted(almost, by_name), None).value < 1.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: any_of({}),
        lambda: weighted({"a": answer_equals()}, {}),
        lambda: weighted({"a": answer_equals()}, {"a": 1, "b": 1}),
        lambda: weighted({"a": answer_equals()}, {"a": 0}),
        lambda: answer_is_number(tolerance=-1),
        lambda: answer_is_number(relative=float("nan")),
        lambda: answer_has_format("a poem"),
        lambda: answer_fits_schema({"type": "sonnet"}),
        lambda: answer_fits_schema({"properties": {"x": {"pattern": "(a+)+$"}}}),
        lambda: answer_fits_schema({"$ref": "http://example.com"}),
        lambda: dynamic("", lambda task: 1, answer_equals()),
        lambda: make_grader(["poetry"]),
        lambda: make_grader(["missing.py"]),
    ],
)
def test_a_grader_that_cannot_be_is_refused_when_it_is_made(make: Callable[[], Grader]) -> None:
    with pytest.raises(ConfigError):
        make()


@pytest.mark.parametrize(
    ("grader", "target"),
    [
        (answer_is_number(), "7"),
        (answer_is_number(), True),
        (answer_is_number(), []),
        (answer_matches(), None),
        (answer_matches(), "("),
        (answer_matches(), r"(a)\1"),
        (answer_matches(target_key="pattern"), {}),
        (answer_includes_json(target_key="json"), None),
        (calls_alike(), []),
        (calls_made(), [{"name": "pay", "arguments": "all"}]),
    ],
)
def test_a_target_that_cannot_be_is_a_grader_error_and_no_0(grader: Grader, target: Json) -> None:
    graded = apply_grader(grader, Task(id="a", prompts=(), target=target), episode(said("7")), no_states)
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)


def test_a_pattern_matches_all_or_any_part() -> None:
    assert verdict(answer_matches(), r"\d+ items", said(" 12 items\n")).value == 1.0
    assert verdict(answer_matches(), r"\d+ items", said("12 items, sir")).value == 0.0
    assert verdict(answer_matches(whole=False), r"\d+ items", said("12 items, sir")).value == 1.0


def test_a_truth_is_found_out_once_and_kept() -> None:
    asked = []

    def price(task: Task) -> Json:
        asked.append(task.id)
        return 40 + len(asked)

    grader = dynamic("price", price, answer_is_number())
    task = Task(id="a", prompts=())
    first = apply_grader(grader, task, episode(said("41")), no_states)
    again = apply_grader(grader, task, first, no_states)
    assert first == again
    assert (first.score, first.provenance[GROUND_TRUTHS], asked) == (1.0, {"price": 41}, ["a"])
    other = apply_grader(dynamic("other", lambda task: 7, answer_is_number()), task, first, no_states)
    assert other.provenance[GROUND_TRUTHS] == {"price": 41, "other": 7}
    forgotten = apply_grader(grader, task, episode(said("41")), no_states)
    assert (forgotten.score, forgotten.provenance[GROUND_TRUTHS]) == (0.0, {"price": 42})


def test_a_truth_that_cannot_be_found_out_is_a_grader_error() -> None:
    def fails(task: Task) -> Json:
        raise TimeoutError("no answer")

    graded = apply_grader(
        dynamic("price", fails, answer_is_number()), Task(id="a", prompts=()), episode(said("1")), no_states
    )
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
    assert "no answer" in graded.reason


def test_graders_have_names_for_the_command_line(tmp_path: Path) -> None:
    for name in BY_NAME:
        assert callable(make_grader([name]))
    assert verdict(make_grader(["answer:text"]), {"text": "7"}, said("7")).value == 1.0
    file = tmp_path / "mine.py"
    file.write_text(
        "from gymcp.types import Score\n"
        "def GRADE(task, trajectory, states):\n"
        "    return Score(value=0.5, reason='half')\n"
    )
    assert verdict(make_grader([str(file), "answer"]), "7", said("7")).components == {str(file): 0.5, "answer": 1.0}
    file.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="defines no function GRADE"):
        make_grader([str(file)])
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        make_grader([str(file)])


@settings(max_examples=50)
@given(st.text(max_size=50))
def test_no_answer_makes_a_grader_raise(text: str) -> None:
    for grader, target in (
        (answer_equals(), "7"),
        (answer_is_number(), 7),
        (answer_matches(), "7+"),
        (answer_includes_json(), {"a": 7}),
        (answer_fits_schema({"type": "object"}), None),
        (answer_has_format("a date"), None),
    ):
        assert verdict(grader, target, said(text)).value in (0.0, 1.0)
