"""Checks of arguments against schemas, compared with the jsonschema package; canonical states."""

from __future__ import annotations

import json
import math
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from runtime_wire import json_values

from gymcp.mcp_servers.native.runtime import canonical_json, check_schema, find_violation, state_key

numbers = st.integers(-3, 3) | st.sampled_from([0.5, 1.0, -2.5])
sizes = st.integers(0, 3)
kinds = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object"])
schemas = st.recursive(
    st.booleans()
    | st.fixed_dictionaries(
        {},
        optional={
            "type": kinds | st.lists(kinds, min_size=1, max_size=3, unique=True),
            "enum": st.lists(json_values, min_size=1, max_size=3),
            "minimum": numbers,
            "exclusiveMaximum": numbers,
            "minLength": sizes,
            "maxItems": sizes,
        },
    )
    | st.fixed_dictionaries(
        {},
        optional={
            "const": json_values,
            "maximum": numbers,
            "exclusiveMinimum": numbers,
            "maxLength": sizes,
            "minItems": sizes,
            "pattern": st.sampled_from(["a", "^b", "a.?$", "^[ab]*$"]),
            "required": st.lists(st.sampled_from("abc"), max_size=2, unique=True),
        },
    ),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "properties": st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
            "additionalProperties": inner,
            "items": inner,
            "prefixItems": st.lists(inner, min_size=1, max_size=2),
            "anyOf": st.lists(inner, min_size=1, max_size=3),
            "oneOf": st.lists(inner, min_size=1, max_size=3),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "$ref": st.just("#/$defs/a~1b"),
        },
    ),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(schemas, st.booleans() | st.fixed_dictionaries({"type": kinds}), json_values)
def test_the_check_agrees_with_the_jsonschema_package(schema: Any, defined: Any, value: Any) -> None:
    whole = {"allOf": [schema], "$defs": {"a/b": defined}}
    check_schema(whole)
    assert (find_violation(value, whole) is None) == jsonschema.Draft202012Validator(whole).is_valid(value)


@pytest.mark.parametrize(
    ("keyword", "fits", "breaks"),
    [
        ("minimum", [2, 2.0, "x"], [1, 1.9]),
        ("maximum", [2, 2.0, "x"], [3, 2.1]),
        ("exclusiveMinimum", [3, 2.1, "x"], [2, 2.0]),
        ("exclusiveMaximum", [1, 1.9, "x"], [2, 2.0]),
        ("minLength", ["éé", [1]], ["é", ""]),
        ("maxLength", ["éé", [1, 2, 3]], ["ééé"]),
        ("minItems", [[1, 2], "x"], [[1], []]),
        ("maxItems", [[1, 2], "xxx"], [[1, 2, 3]]),
    ],
)
def test_a_limit_of_two(keyword: str, fits: list[Any], breaks: list[Any]) -> None:
    assert [find_violation(value, {keyword: 2}) for value in fits] == [None] * len(fits)
    assert all(find_violation(value, {keyword: 2}) for value in breaks)


@pytest.mark.parametrize(
    ("schema", "value", "violation"),
    [
        ({"type": "integer"}, 1.0, None),
        ({"type": "number"}, 1, None),
        ({"type": "integer"}, True, "$: expected integer, got boolean true"),
        ({"type": "number"}, False, "$: expected number, got boolean false"),
        ({"type": "integer"}, "1", '$: expected integer, got string "1"'),
        ({"type": ["string", "null"]}, [1, 2], "$: expected string or null, got array of 2"),
        ({"enum": [1]}, True, "$: expected one of [1], got boolean true"),
        ({"const": [1]}, [True], "$: expected [1], got array of 1"),
        ({"items": {"properties": {"a": {"maximum": 1}}}}, [{}, {"a": 2}], "$[1].a: expected at most 1, got integer 2"),
        (
            {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "x",
            '$: expected integer, got string "x"; or $: expected null, got string "x"',
        ),
        ({"oneOf": [{}, {}]}, None, "$: expected exactly one of 2 alternatives to hold (2 do), got null"),
        ({"type": "integer"}, {"a": 1}, '$: expected integer, got object with ["a"]'),
        ({"pattern": "^(a+)+$"}, "a" * 20_000, "$: expected at most 10000 characters, because a pattern applies"),
    ],
    ids=str,
)
def test_a_violation_names_the_path_the_value_and_the_expectation(
    schema: Any, value: Any, violation: str | None
) -> None:
    found = find_violation(value, schema)
    assert found == violation or (violation and found and found.startswith(violation))


def test_a_schema_may_refer_to_itself_but_not_endlessly() -> None:
    chain = {"properties": {"next": {"$ref": "#"}, "value": {"type": "integer"}}, "required": ["value"]}
    assert find_violation({"value": 1, "next": {"value": 2}}, chain) is None
    assert find_violation({"value": 1, "next": {}}, chain) == "$.next.value: required, but missing"
    assert find_violation(1, {"$ref": "#"}) == "$: nested too deeply to check"


def test_canonical_json_is_sorted_dense_and_unescaped() -> None:
    assert canonical_json({"b": [1, 1.0, None, True], "a": "ü"}) == '{"a":"ü","b":[1,1.0,null,true]}'
    assert canonical_json({10: 0, 9: (0,)}) == canonical_json({"9": [0], "10": 0}) == '{"10":0,"9":[0]}'
    assert state_key({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    for bad in (math.nan, math.inf, "\ud800"):
        with pytest.raises(ValueError, match=r"JSON|surrogate"):
            state_key({"x": bad})
    with pytest.raises(TypeError, match="set"):
        canonical_json({1, 2})


@given(json_values)
def test_a_value_and_its_round_trip_have_one_key(value: Any) -> None:
    assert state_key(json.loads(canonical_json(value))) == state_key(value)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    )
)
def test_canonical_json_equals_the_output_of_the_json_module(value: object) -> None:
    plain = json.loads(json.dumps(value))
    assert canonical_json(value) == json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
