"""Structural differences of JSON: one rule for equality, three for lists of different lengths."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymcp.evaluators.json_diff import (
    ABSENT,
    STATE_RULE,
    Difference,
    DiffRule,
    brief,
    differences,
    first_difference,
    list_changes,
)
from gymcp.types import Json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab~/", max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab~/", max_size=3), inner, max_size=3),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("found", "expected", "difference"),
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
        ([1, 3, 4], [2, 3], "0 is 1, wanted 2"),
        ({"x": [1, 2]}, {"x": [1]}, "x has 2 items, wanted 1"),
        ({}, [], "it is {}, wanted []"),
        ([[{"x": 1}]], [[{"x": 2}]], "0.0.x is 1, wanted 2"),
        ({"b": 1}, {"a": 1}, "a is missing, wanted 1"),
        ({"a": 1, "b": 1}, {"a": 1}, "b is 1, wanted nothing there"),
    ],
)
def test_the_first_difference_is_that_of_json(found: Json, expected: Json, difference: str | None) -> None:
    assert first_difference(found, expected) == difference


def test_a_rule_may_compare_as_python_does_and_name_missing_keys_first() -> None:
    rule = DiffRule(lists="whole", true_equals_one=True, missing_keys_first=True)
    assert list(differences([True, 0], [1, False], rule)) == []
    found = list(differences({"a": 1, "z": 1, "c": 1}, {"a": 2, "b": 1, "z": True}, rule))
    assert found == [Difference(("b",), ABSENT, 1), Difference(("c",), 1, ABSENT), Difference(("a",), 1, 2)]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (DiffRule(lists="items"), [Difference((0,), 1, 9), Difference((2,), 3, ABSENT)]),
        (DiffRule(lists="prefix"), [Difference((0,), 1, 9), Difference((), [1, 2, 3], [9, 2])]),
        (DiffRule(lists="whole"), [Difference((), [1, 2, 3], [9, 2])]),
    ],
    ids=lambda value: value.lists if isinstance(value, DiffRule) else "",
)
def test_lists_of_different_lengths_are_compared_by_the_rule(rule: DiffRule, expected: list[Difference]) -> None:
    assert list(differences([1, 2, 3], [9, 2], rule)) == expected


def test_nan_differs_from_nan_only_by_the_rule() -> None:
    assert list(differences([math.nan], [math.nan], DiffRule(lists="whole"))) == []
    assert len(list(differences([math.nan], [math.nan], DiffRule(lists="whole", nan_equals_nan=False)))) == 1


def test_keys_come_in_the_order_of_the_left_side_unless_sorted() -> None:
    left, right = {"b": 1, "a": 1}, {"c": 2, "a": 2, "b": 2}
    assert [each.path for each in differences(left, right, DiffRule(lists="whole"))] == [("b",), ("a",), ("c",)]
    by_name = DiffRule(lists="whole", sort_keys=True)
    assert [each.path for each in differences(left, right, by_name)] == [("a",), ("b",), ("c",)]
    ignoring = DiffRule(lists="whole", ignore_left_keys=True)
    assert list(differences({"a": 1, "b": 1}, {"a": 1}, ignoring)) == []
    assert list(differences({}, {"a": 1}, ignoring)) == [Difference(("a",), ABSENT, 1)]


def test_changes_name_path_kind_and_values() -> None:
    changes = list_changes({"a": [1, True], "b": {"x": "old"}, "c": 1}, {"a": [1, 1], "b": {"x": "new"}, "d": None})
    assert [(".".join(each["path"]), each["kind"], each["before"], each["after"]) for each in changes["changes"]] == [
        ("a.1", "changed", "true", "1"),
        ("b.x", "changed", "old", "new"),
        ("c", "removed", "1", None),
        ("d", "added", None, "null"),
    ]


def test_a_long_value_is_cut_and_the_cut_is_marked() -> None:
    assert brief("x" * 1000) == '"' + "x" * 119 + "... (1002 characters)"


@given(JSON)
def test_everything_includes_itself_and_an_object_with_more_keys_includes_it(value: Json) -> None:
    assert first_difference(value, value, more_keys=True) is None
    if isinstance(value, dict):
        assert first_difference({**value, "new": 1}, value, more_keys=True) is None
        assert first_difference({**value, "new": 1}, value) is not None


@given(JSON, JSON)
def test_there_are_differences_exactly_if_two_values_differ(old: Json, new: Json) -> None:
    changes = list(differences(old, new, STATE_RULE))
    assert bool(changes) == (first_difference(old, new) is not None)
    assert len({change.path for change in changes}) == len(changes)
