"""Strict JSON is bounded in depth before the parser recurses, and brackets in strings do not count."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymcp.agents.tool_calls.strict_json import Malformed, load, load_first
from gymcp.envs.episodes.call_validation import MAX_DEPTH

DEEP = "[" * MAX_DEPTH


@pytest.mark.parametrize("read", [load, lambda text: load_first(text)[0]], ids=["load", "load_first"])
@pytest.mark.parametrize(
    ("text", "fine"),
    [
        (DEEP + "]" * MAX_DEPTH, True),
        (f"[{DEEP}]" + "]" * MAX_DEPTH, False),
        (f'["{DEEP}"]', True),
        (rf'["\"{DEEP}"]', True),
        (rf'["\\", {DEEP}' + "]" * MAX_DEPTH + "]", False),
        (rf'["\\\"{DEEP}"]', True),
        (f'{{"{DEEP}": ["{DEEP}"]}}', True),
    ],
)
def test_depth_is_that_of_the_value(read: object, text: str, fine: bool) -> None:
    assert callable(read)
    if fine:
        assert read(text) == json.loads(text)
    else:
        with pytest.raises(Malformed, match=f"nested more than {MAX_DEPTH} deep"):
            read(text)


@given(st.text(alphabet='[]{}",\\1 a'))
def test_arbitrary_text_is_read_as_the_standard_parser_reads_it(text: str) -> None:
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(Malformed):
            load(text)
    else:
        assert load(text) == expected
