"""One table of all graders: records that are right, wrong, empty, unreadable and adversarial, and invalid targets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from trajectories import call, call_step, episode, text_step, verdict

from gymcp.errors import ConfigError
from gymcp.evaluators.graders import (
    all_of,
    answer_equals,
    answer_fits_schema,
    answer_has_format,
    answer_includes_json,
    answer_is_number,
    any_of,
    calls_alike,
    calls_made,
    dynamic,
    final_files_equal,
    final_state_equals,
    final_values_include,
    milestones,
    state_changes,
    weighted,
)
from gymcp.evaluators.graders.patterns import answer_matches
from gymcp.evaluators.graders.registry import make_grader
from gymcp.evaluators.grading import apply_grader
from gymcp.outcome import Outcome
from gymcp.protocols import Grader
from gymcp.types import Json, Step, Task, ToolCall

DEEP = "[" * 100_000
SHOP = {"orders": {"7": {"status": "open"}, "8": {"status": "open"}}}
PAID = {"orders": {"7": {"status": "paid"}, "8": {"status": "open"}}}
ALL_PAID = {"orders": {"7": {"status": "paid"}, "8": {"status": "paid"}}}
TEXT_FILE = {"type": "file", "mode": "644", "text": "paid"}
READ_FILE = {"type": "file", "mode": "644", "sha256": "00", "size": 4, "reader": "json"}
PAY = {"name": "pay", "arguments": {"order": 7}}
CHARGED = {"milestones": [{"name": "paid", "call": PAY}], "minefields": [{"name": "sworn", "says": "damn"}]}
RAW = ToolCall(id="raw", name="pay", arguments='{"order": 7')


@dataclass(frozen=True, kw_only=True)
class Played:
    """Steps of an episode, and the state in which it ended."""

    steps: tuple[Step, ...] = ()
    state: Json = field(default_factory=dict)


def says(text: str) -> Played:
    return Played(steps=(text_step(text),))


def ends(state: Json) -> Played:
    return Played(state=state)


def calls(*of_step: ToolCall) -> Played:
    return Played(steps=(call_step(*of_step),))


@dataclass(frozen=True, kw_only=True)
class Case:
    grader: Grader
    target: Json
    right: Played
    wrong: Played
    unreadable: Played
    adversarial: tuple[Played, ...]
    """Tricks that a careless grader would fall for; none of them may succeed."""


CASES = {
    "normalised answer": Case(
        grader=answer_equals(),
        target="Order 7",
        right=says(" order 7. "),
        wrong=says("order 8"),
        unreadable=says("\ud800\x00"),
        adversarial=(says("order 7 or order 8"), says("order 7\u202e8"), says("Order 7" * 100_000)),
    ),
    "exact answer": Case(
        grader=answer_equals(exact=True),
        target="Order 7",
        right=says("Order 7"),
        wrong=says("order 7"),
        unreadable=says("\ud800"),
        adversarial=(says("Order 7\u200b"), says("Order\u00a07")),
    ),
    "number": Case(
        grader=answer_is_number(tolerance=0.01),
        target=1234.5,
        right=says("It comes to $1,234.50."),
        wrong=says("1234.52"),
        unreadable=says("one thousand"),
        adversarial=(says("1234.5 1234.6 7"), says("nan"), says("inf"), says("1e999"), says("9" * 100_000)),
    ),
    "pattern": Case(
        grader=answer_matches(),
        target="(a+)+",
        right=says("aaa"),
        wrong=says("ab"),
        unreadable=says("\ud800"),
        adversarial=(says("a" * 50_000 + "!"), says("a" * 2_000_000), says("aaa\nb")),
    ),
    "JSON": Case(
        grader=answer_includes_json(),
        target={"id": 7, "items": [{"n": 1}]},
        right=says('Here:\n```json\n{"id": 7, "items": [{"n": 1, "x": 2}], "more": true}\n```\n'),
        wrong=says('{"id": 7, "items": [{"n": 1}, {"n": 2}]}'),
        unreadable=says('{"id": 7, '),
        adversarial=(
            says(DEEP),
            says('{"id": 8, "id": 7, "items": [{"n": 1}]}'),
            says('{"id": 7, "items": [{"n": true}]}'),
            says('{"id": 7, "items": [{"n": 1}]} or {"id": 8}'),
            says("```" * 50_000),
        ),
    ),
    "schema": Case(
        grader=answer_fits_schema({"type": "object", "required": ["id"], "properties": {"id": {"type": "integer"}}}),
        target=None,
        right=says('{"id": 7}'),
        wrong=says('{"id": "7"}'),
        unreadable=says("<html>"),
        adversarial=(says(DEEP), says('{"id": true}'), says('{"id": NaN}')),
    ),
    "format": Case(
        grader=answer_has_format("a number"),
        target=None,
        right=says(" -1,234.5 "),
        wrong=says("seven"),
        unreadable=says("\ud800"),
        adversarial=(says("7 of 8"), says("1e999"), says("٣"), says("+-7")),
    ),
    "final state": Case(
        grader=final_state_equals(),
        target=PAID,
        right=ends(PAID),
        wrong=ends(SHOP),
        unreadable=ends("<html>"),
        adversarial=(ends(ALL_PAID), ends({**PAID, "orders ": {}}), ends({"target": PAID})),
    ),
    "state changes": Case(
        grader=state_changes(before=lambda task: SHOP),
        target={"set": {"/orders/7/status": "paid"}},
        right=ends(PAID),
        wrong=ends(SHOP),
        unreadable=ends("<html>"),
        adversarial=(ends(ALL_PAID), ends({"orders": {"7": {"status": "paid"}}}), ends({**PAID, "spam": 1})),
    ),
    "files": Case(
        grader=final_files_equal(),
        target={"7": "paid"},
        right=ends({"files": {"7": TEXT_FILE}}),
        wrong=ends({"files": {"7": {**TEXT_FILE, "text": "open"}}}),
        unreadable=ends({"files": {"7": {"type": "file", "mode": "644", "sha256": "00", "size": 4}}}),
        adversarial=(
            ends({"files": {"7": {"type": "link", "mode": "777", "target": "paid"}}}),
            ends({"files": {"7": TEXT_FILE, "8": TEXT_FILE}}),
        ),
    ),
    "values of readers": Case(
        grader=final_values_include(),
        target={"a.json": {"paid": 7}},
        right=ends({"files": {"a.json": {**READ_FILE, "value": {"paid": 7, "open": 8}}}}),
        wrong=ends({"files": {"a.json": {**READ_FILE, "value": {"paid": 8}}}}),
        unreadable=ends({"files": {"a.json": {**READ_FILE, "unreadable": "it is no JSON document"}}}),
        adversarial=(
            ends({"files": {"a.json": {**READ_FILE, "value": {"paid": True}}}}),
            ends({"files": {"b.json": {**READ_FILE, "value": {"paid": 7}}}}),
        ),
    ),
    "calls in order": Case(
        grader=calls_made(),
        target=[PAY, {"name": "end", "arguments": {}}],
        right=calls(call("look"), call("pay", order=7), call("end")),
        wrong=calls(call("end"), call("pay", order=7)),
        unreadable=calls(RAW, call("end")),
        adversarial=(
            Played(steps=(call_step(call("pay", order=7), call("end"), failed=True),)),
            calls(call("pay", order=7, and_also=8), call("end")),
            calls(call("pay", order=True), call("end")),
        ),
    ),
    "calls in any order": Case(
        grader=calls_made(in_order=False),
        target=[PAY, PAY],
        right=calls(call("pay", "1", order=7), call("pay", "2", order=7)),
        wrong=calls(call("pay", order=7)),
        unreadable=calls(RAW),
        adversarial=(calls(call("pay", order="7"), call("pay", "2", order=7)),),
    ),
    "calls argument by argument": Case(
        grader=calls_alike(others=False),
        target=[{"name": "pay", "arguments": {"order": 7, "tip": 0}}],
        right=calls(call("pay", order=7, tip=0)),
        wrong=calls(call("refund", order=7)),
        unreadable=calls(RAW),
        adversarial=(calls(*(call("pay", order=n, tip=0) for n in range(9))), calls(call("pay", order=7, tip=False))),
    ),
    "milestones": Case(
        grader=milestones(),
        target=CHARGED,
        right=calls(call("pay", order=7)),
        wrong=calls(call("pay", order=8)),
        unreadable=calls(RAW),
        adversarial=(
            Played(steps=(call_step(call("pay", order=7)), text_step("DAMN it"))),
            Played(steps=(call_step(call("pay", order=7), failed=True),)),
            says('pay({"order": 7})'),
        ),
    ),
    "dynamic": Case(
        grader=dynamic("price", lambda task: 42, answer_is_number()),
        target=None,
        right=says("42"),
        wrong=says("41"),
        unreadable=says("forty-two"),
        adversarial=(says("40 41 42 43"),),
    ),
    "all of": Case(
        grader=all_of({"text": answer_equals(), "form": answer_has_format("one line")}),
        target="7",
        right=says("7"),
        wrong=says("8"),
        unreadable=says("\ud800"),
        adversarial=(says("\n\n7\n\n8"),),
    ),
    "any of": Case(
        grader=any_of({"seven": answer_equals(), "json": answer_includes_json()}),
        target="7",
        right=says('"7"'),
        wrong=says("8"),
        unreadable=says("{"),
        adversarial=(says(DEEP),),
    ),
    "weighted": Case(
        grader=weighted({"seven": answer_equals(), "number": answer_has_format("a number")}, {"seven": 2, "number": 1}),
        target="7",
        right=says("7"),
        wrong=says("8"),
        unreadable=says("\ud800"),
        adversarial=(says("7 7"), says("8")),
    ),
}


def grade(case: Case, played: Played) -> float:
    """The score, after checks that hold of every score."""
    score = verdict(case.grader, case.target, *played.steps, state=played.state)
    assert 0 <= score.value <= 1
    assert score.reason
    assert len(score.reason) < 1000
    return score.value


@pytest.mark.parametrize("name", CASES)
def test_only_the_right_record_scores_1(name: str) -> None:
    case = CASES[name]
    nothing = Played(state={"files": {}})
    assert grade(case, case.right) == 1.0
    others = [
        case.wrong,
        nothing,
        Played(steps=(text_step(""),), state=nothing.state),
        case.unreadable,
        *case.adversarial,
    ]
    assert [each for each in others if grade(case, each) >= 1.0] == []


@pytest.mark.parametrize("name", CASES)
def test_the_same_record_gets_the_same_verdict(name: str) -> None:
    case = CASES[name]
    for played in (case.right, case.wrong, *case.adversarial):
        first, again = (verdict(case.grader, case.target, *played.steps, state=played.state) for _ in range(2))
        assert first == again


STATE = {"files": {}, "log": ["start"]}
INVALID_TARGETS: dict[str, tuple[Grader, tuple[Json, ...], str]] = {
    "text": (answer_equals(), (None, 7, [], [7], "", "'.'", ["7", " "], {"text": "7"}), "the target"),
    "number": (answer_is_number(), ("7", True, []), "the target"),
    "pattern": (answer_matches(), (None, "(", r"(a)\1"), "the target is"),
    "pattern by key": (answer_matches(target_key="pattern"), ({},), "task 'a': the target has no 'pattern'"),
    "JSON by key": (answer_includes_json(target_key="json"), (None,), "task 'a': the target has no 'json'"),
    "state by key": (
        final_state_equals(target_key="end"),
        ({"other": 1}, None, "end"),
        "task 'a': the target has no 'end'",
    ),
    "files": (final_files_equal(), ([],), "not a mapping of files"),
    "values of readers": (final_values_include(), ([], {}), "not a mapping of files"),
    "files by key": (final_files_equal(target_key="files"), ({},), "the target has no 'files'"),
    "changes": (
        state_changes(),
        (None, {}, {"sets": {}}, {"set": []}, {"set": {"no slash": 1}}, {"may_change": ["/x"]}, {"set": {"/log/7": 1}}),
        "target",
    ),
    "calls": (
        calls_made(),
        (None, [], {"calls": []}, [{"name": "add"}], ["add"], [{"name": "pay", "arguments": "all"}]),
        "the target",
    ),
    "calls alike": (calls_alike(), ([],), "not a list of calls"),
}
"""Graders, targets that are defects of the suite, and words of the error. Those of milestones: test_call_graders.py."""


@pytest.mark.parametrize("name", INVALID_TARGETS)
def test_an_invalid_target_is_a_grader_error_and_no_0(name: str) -> None:
    grader, targets, words = INVALID_TARGETS[name]
    for target in targets:
        task = Task(id="a", prompts=(), target=target, initial_state=STATE)
        graded = apply_grader(grader, task, episode(text_step("7")), lambda ref: STATE)
        assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None), target
        assert graded.reason.startswith("grader raised GraderError: "), target
        assert words in graded.reason, target


@pytest.mark.parametrize(
    "make",
    [
        lambda: all_of({}),
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
def test_a_grader_with_impossible_settings_is_refused_when_it_is_made(make: Callable[[], Grader]) -> None:
    with pytest.raises(ConfigError):
        make()
