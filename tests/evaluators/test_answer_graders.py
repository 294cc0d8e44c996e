"""Graders of the agent's final answer: what they read in it, and the reasons that they give."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trajectories import call, episode, text_step, verdict

from gymcp.evaluators.graders import (
    answer_equals,
    answer_fits_schema,
    answer_has_format,
    answer_includes_json,
    answer_is_number,
)
from gymcp.evaluators.graders.answers import final_answer, last_number, normalise_answer, read_json
from gymcp.evaluators.graders.patterns import answer_matches
from gymcp.types import Json, Score, Step

LOOK = call("look")
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("text", "value", "exact"),
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
def test_answers_are_compared_without_case_and_punctuation_unless_exact(text: str, value: float, exact: float) -> None:
    steps = (text_step("let me look", LOOK), text_step(text))
    assert verdict(answer_equals(), "Order 7 is paid", *steps).value == value
    assert verdict(answer_equals(exact=True), "Order 7 is paid", *steps).value == exact


def test_a_reason_names_the_answer_and_the_accepted_ones() -> None:
    assert verdict(answer_equals(), ["7", "seven"], text_step("8")) == Score(
        value=0.0, reason='the answer is "8", wanted "7" or "seven"'
    )
    assert verdict(answer_equals(target_key="text"), {"text": "7"}, text_step("7")) == Score(
        value=1.0, reason='the answer is "7", as wanted'
    )


@pytest.mark.parametrize("steps", [(), (text_step("7", LOOK),), (text_step("7", valid=False),)])
def test_an_agent_without_a_final_answer_is_wrong(steps: tuple[Step, ...]) -> None:
    assert verdict(answer_equals(), "7", *steps) == Score(value=0.0, reason="the agent never spoke")


def test_the_final_answer_is_the_last_usable_text_without_a_call() -> None:
    steps = (text_step("first"), text_step("second"), text_step("calling", LOOK), text_step("", valid=False))
    assert final_answer(episode(*steps)) == "second"


def test_normalising_an_answer_twice_changes_nothing() -> None:
    for text in ("'A  b.'", " ``X'' ", "1.000,5", "a..", "'.5'.'", "ﬁne"):
        assert normalise_answer(normalise_answer(text)) == normalise_answer(text)


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


def test_a_pattern_matches_all_or_any_part() -> None:
    assert verdict(answer_matches(), r"\d+ items", text_step(" 12 items\n")).value == 1.0
    assert verdict(answer_matches(), r"\d+ items", text_step("12 items, sir")).value == 0.0
    assert verdict(answer_matches(whole=False), r"\d+ items", text_step("12 items, sir")).value == 1.0


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
        assert verdict(grader, target, text_step(text)).value in (0.0, 1.0)
