"""Every grader on an answer that is right, wrong, empty, cannot be read, and means harm."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from played import acted, call, said, verdict

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
    milestones,
    state_changes,
    weighted,
)
from gymcp.evaluators.graders.patterns import answer_matches
from gymcp.protocols import Grader
from gymcp.types import Json, Step, ToolCall

DEEP = "[" * 100_000
SHOP = {"orders": {"7": {"status": "open"}, "8": {"status": "open"}}}
PAID = {"orders": {"7": {"status": "paid"}, "8": {"status": "open"}}}
ALL_PAID = {"orders": {"7": {"status": "paid"}, "8": {"status": "paid"}}}
TEXT_FILE = {"type": "file", "mode": "644", "text": "paid"}
PAY = {"name": "pay", "arguments": {"order": 7}}
CHARGED = {"milestones": [{"name": "paid", "call": PAY}], "minefields": [{"name": "sworn", "says": "damn"}]}
RAW = ToolCall(id="raw", name="pay", arguments='{"order": 7')


@dataclass(frozen=True, kw_only=True)
class Played:
    steps: tuple[Step, ...] = ()
    state: Json = field(default_factory=dict)


def says(text: str) -> Played:
    return Played(steps=(said(text),))


def ends(state: Json) -> Played:
    return Played(state=state)


def calls(*made: ToolCall) -> Played:
    return Played(steps=(acted(*made),))


@dataclass(frozen=True, kw_only=True)
class Case:
    grader: Grader
    target: Json
    right: Played
    wrong: Played
    unreadable: Played
    adversarial: tuple[Played, ...]
    """Tricks that a careless grader would fall for; none of them succeeds."""


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
    "calls in order": Case(
        grader=calls_made(),
        target=[PAY, {"name": "end", "arguments": {}}],
        right=calls(call("look"), call("pay", order=7), call("end")),
        wrong=calls(call("end"), call("pay", order=7)),
        unreadable=calls(RAW, call("end")),
        adversarial=(
            Played(steps=(acted(call("pay", order=7), call("end"), failed=True),)),
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
            Played(steps=(acted(call("pay", order=7)), said("DAMN it"))),
            Played(steps=(acted(call("pay", order=7), failed=True),)),
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


def judged(case: Case, played: Played) -> float:
    score = verdict(case.grader, case.target, *played.steps, state=played.state)
    assert 0 <= score.value <= 1
    assert score.reason
    assert len(score.reason) < 1000
    return score.value


@pytest.mark.parametrize("name", CASES)
def test_a_right_answer_is_worth_1_and_no_other_is(name: str) -> None:
    case = CASES[name]
    nothing = Played(state={"files": {}})
    assert judged(case, case.right) == 1.0
    others = [case.wrong, nothing, Played(steps=(said(""),), state=nothing.state), case.unreadable, *case.adversarial]
    assert [each for each in others if judged(case, each) >= 1.0] == []


@pytest.mark.parametrize("name", CASES)
def test_the_same_record_gets_the_same_verdict(name: str) -> None:
    case = CASES[name]
    for played in (case.right, case.wrong, *case.adversarial):
        first, again = (verdict(case.grader, case.target, *played.steps, state=played.state) for _ in range(2))
        assert first == again
