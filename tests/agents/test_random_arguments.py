from __future__ import annotations

import json
import random

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymcp.agents.strategies.random_arguments import find_words, sample_instance
from gymcp.types import Json

SCHEMAS: list[dict[str, Json]] = [
    {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": ["a"]},
    {"type": "array", "items": {"type": "number", "minimum": -3, "maximum": 2}, "minItems": 2, "maxItems": 4},
    {"enum": ["x", 3, None]},
    {"const": {"k": 1}},
    {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
    {"type": ["string", "null"], "minLength": 3, "maxLength": 5},
    {"type": "object", "properties": {"in": {"type": "object", "properties": {"n": {"type": "array"}}}}},
]


@pytest.mark.parametrize("schema", SCHEMAS)
@given(seed=st.integers(0, 10_000))
def test_random_instances_are_valid(schema: dict[str, Json], seed: int) -> None:
    instance = sample_instance(schema, random.Random(seed), ["word", "a"])
    jsonschema.validate(instance, schema)


def test_words_phrases_and_numbers_of_a_text_are_found() -> None:
    assert find_words("Move 'final report.pdf' to temp_dir, please #now") == [
        "final report.pdf",
        "Move",
        "final",
        "report.pdf",
        "to",
        "temp_dir",
        "please",
        "#now",
    ]


def nest(levels: int) -> dict[str, Json]:
    items: dict[str, Json] = {"type": "string", "minLength": 10**12}
    for _ in range(levels):
        items = {"type": "array", "items": items, "minItems": 10**12, "maxItems": 1e300}
    return {"type": "object", "properties": {"a": items}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema",
    [nest(1), nest(40), {"type": "integer", "minimum": 1e300}, {"type": "number", "minimum": 1e308, "maximum": 1}],
)
def test_an_untrusted_schema_yields_at_most_some_megabytes(schema: dict[str, Json]) -> None:
    made = sample_instance(schema, random.Random(0), ["a"])
    assert len(json.dumps(made)) < 10_000_000
