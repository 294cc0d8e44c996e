"""Graders of tool calls and of milestones: reasons, partial credit and options."""

from __future__ import annotations

import pytest
from trajectories import call, call_step, text_step, verdict

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders import as_target, calls_alike, calls_made, milestones
from gymcp.types import Json, Score, ToolCall

ADD, END = call("add", a=1), call("end")
ADD_UNREADABLE = ToolCall(id="raw", name="add", arguments='{"a": 1')


@pytest.mark.parametrize(
    ("calls", "failed", "value", "reason"),
    [
        ((ADD, END), (), 1.0, "every wanted call was made"),
        ((END, ADD, END), (), 1.0, "every wanted call was made"),
        ((END, ADD), (), 0.0, "call 2 of 2 was not made: end({})"),
        ((ADD,), (), 0.0, "call 2 of 2 was not made: end({})"),
        ((ADD, END), (END,), 0.0, "call 2 of 2 was not made: end({})"),
        ((), (), 0.0, 'call 1 of 2 was not made: add({"a": 1})'),
        ((ADD_UNREADABLE, END), (), 0.0, 'call 1 of 2 was not made: add({"a": 1})'),
    ],
)
def test_the_first_call_that_is_missing_is_the_reason(
    calls: tuple[ToolCall, ...], failed: tuple[ToolCall, ...], value: float, reason: str
) -> None:
    steps = (call_step(*calls, failed=failed),) if calls else ()
    score = verdict(calls_made(), as_target([ADD, END]), *steps)
    assert (score.value, score.reason) == (value, reason)
    assert verdict(calls_made(target_key="calls"), {"calls": as_target([ADD, END])}, *steps).value == value


def test_order_errors_and_further_arguments_can_be_allowed() -> None:
    target = as_target([ADD, END])
    assert verdict(calls_made(in_order=False), target, call_step(END, ADD)).value == 1.0
    assert verdict(calls_made(must_succeed=False), target, call_step(ADD, END, failed=(END,))).value == 1.0
    more = call_step(call("add", a=1, note="one"), END)
    assert verdict(calls_made(), target, more).value == 0.0
    assert verdict(calls_made(more_arguments=True), target, more).value == 1.0
    assert verdict(calls_made(more_arguments=True), target, call_step(call("add"), END)).value == 0.0


def test_a_call_with_unreadable_arguments_is_no_target() -> None:
    with pytest.raises(ConfigError):
        as_target([ADD_UNREADABLE])


def test_calls_are_compared_argument_by_argument() -> None:
    target = [
        {"name": "pay", "arguments": {"order": 7, "by": "card"}},
        {"name": "mail", "arguments": {"to": "ann"}},
    ]
    made = call_step(call("pay", order=8, by="card"), call("pay", "2", order=7, by="cash", tip=1), call("look"))
    assert verdict(calls_alike(), target, made) == Score(
        value=0.25,  # the nearest of the two has one of two arguments; nobody mailed
        components={"tools": 0.5, "arguments": 0.5},
        reason='no call stands for mail({"to": "ann"})',
    )
    both = call_step(call("pay", order=7, by="card"), call("mail", to="bob"))
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
FIND = call_step(call("find", id=7), state_ref="open")
PAY = call_step(call("pay"), state_ref="paid")
MAIL = call_step(call("mail", to="ann"), state_ref="open")
TELL = text_step("It is PAID now.", state_ref="paid")
DELETE = call_step(call("delete"), state_ref="open")


@pytest.mark.parametrize(
    ("steps", "value", "reason"),
    [
        ((FIND, PAY, MAIL, TELL), 1.0, "all 4 milestones were passed"),
        ((FIND, MAIL, PAY, TELL), 1.0, "all 4 milestones were passed"),
        ((PAY, MAIL, TELL), 0.0, "'found' did not happen; 'paid' needs 'found' first; 'mailed' needs 'found' first"),
        ((MAIL, FIND, PAY, TELL), 0.5, "'mailed' did not happen after 'found'; 'told' needs 'mailed' first"),
        ((TELL, FIND, MAIL, PAY), 0.75, "'told' did not happen after 'mailed'"),
        ((FIND, PAY, MAIL, TELL, DELETE), 0.0, "'deleted' must not happen, and did"),
        ((), 0.0, "'found' did not happen"),
    ],
)
def test_milestones_in_any_order_that_their_dependencies_allow(
    steps: tuple[object, ...], value: float, reason: str
) -> None:
    found = verdict(milestones(), GRAPH, *steps, states=STATES)  # type: ignore[arg-type]
    assert found.value == value
    assert found.reason.startswith(reason)


def test_a_milestone_is_passed_after_those_it_depends_on() -> None:
    twice = {
        "milestones": [
            {"name": "first", "call": {"name": "pay", "arguments": {}}},
            {"name": "second", "call": {"name": "pay", "arguments": {}}, "after": ["first"]},
        ]
    }
    assert verdict(milestones(), twice, call_step(call("pay"))).value == 0.5
    assert verdict(milestones(), twice, call_step(call("pay", "1"), call("pay", "2"))).value == 1.0


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
def test_invalid_milestones_are_a_defect_of_the_suite(target: Json, why: str) -> None:
    with pytest.raises(GraderError, match=why):
        verdict(milestones(), target, text_step("hello"))
