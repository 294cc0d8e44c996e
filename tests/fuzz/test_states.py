"""Any value as a declared state: the native runtime tells it as Python's own JSON would, or says that it cannot."""

from __future__ import annotations

import json
import math
from typing import Any

import mcp_types
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gymcp.mcp_servers.digest import digest
from gymcp.mcp_servers.native.runtime import (
    MAX_VALUE_DEPTH,
    RESULT_STATE_KEY,
    STATE_KEY,
    STATE_UNAVAILABLE,
    STATE_WITHIN_KEY,
    Server,
    canonical_json,
    state_key,
)

Numbers = (
    st.integers()
    | st.floats()
    | st.sampled_from([4000, 4298, 4299, 4300, 4400]).map(lambda digits: -(10**digits))
    | st.sampled_from([1e308, -0.0, 5e-324, 1 << 64, math.inf])
)
Text = st.text(st.characters(categories=None), max_size=8) | st.sampled_from(["\ud83d\ude00", "\ud800", "\0", "\u2028"])
Leaf = st.none() | st.booleans() | Numbers | Text
Odd = st.binary(max_size=3) | st.frozensets(st.integers(), max_size=2) | st.builds(object) | st.complex_numbers()
Key = Text | st.integers() | st.floats() | st.booleans() | st.none() | st.tuples(st.integers())


def nest(leaf: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaf,
        lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(Key, inner, max_size=4),
        max_leaves=12,
    )


def deepen(value: Any, levels: int) -> Any:
    for _ in range(levels):
        value = [value]
    return value


Value = nest(Leaf) | nest(Leaf | Odd) | st.builds(deepen, nest(Leaf), st.integers(0, 2 * MAX_VALUE_DEPTH))


def depth_of(value: Any) -> int:
    below = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if below is None else 1 + max(map(depth_of, below), default=0)


def as_python_reads(value: Any) -> Any:
    """The value after Python's own way through JSON and through UTF-8. Raises TypeError, ValueError, RecursionError."""
    plain = json.loads(json.dumps(value, allow_nan=False))
    json.dumps(plain, ensure_ascii=False).encode()
    if depth_of(plain) > MAX_VALUE_DEPTH:
        raise ValueError("too deep")
    return plain


def read(line: bytes) -> Any:
    """The message, by the parser that the harness uses."""
    return mcp_types.jsonrpc_message_adapter.validate_json(line, by_name=False).model_dump(by_alias=True)


def same(a: Any, b: Any) -> bool:
    """Equal in type, too: 1 is neither 1.0 nor true."""
    return json.dumps(a, sort_keys=True) == json.dumps(b, sort_keys=True)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(Value)
@example(deepen(0, MAX_VALUE_DEPTH))
@example(deepen(0, MAX_VALUE_DEPTH + 1))
@example(deepen("[" * 300, 3))
@example({1: "a", "1": "b"})
@example({"a": "\ud83d\ude00"})
def test_a_state_is_told_as_python_reads_it_or_said_to_be_none(value: Any) -> None:
    try:
        wanted = as_python_reads(value)
    except (TypeError, ValueError, RecursionError):
        wanted = None
    else:
        wanted = [wanted]
    server = Server("s")
    server.state(lambda: value)
    server.add_tool(lambda: "done", name="t")
    meta = {STATE_WITHIN_KEY: 10**9}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t", "_meta": meta}}
    line = server.handle(json.dumps(asked).encode())
    assert line is not None
    answer = read(line)
    if wanted is None:
        assert answer["error"]["code"] == STATE_UNAVAILABLE
        return
    told = answer["result"]["_meta"]
    assert same(told[RESULT_STATE_KEY], wanted[0])
    assert told[STATE_KEY] == state_key(value) == digest(told[RESULT_STATE_KEY]) == digest(wanted[0])
    assert json.loads(canonical_json(value)) == wanted[0]


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(nest(Leaf), nest(Leaf))
def test_states_have_one_key_exactly_if_they_are_the_same_json(left: Any, right: Any) -> None:
    try:
        plain = [as_python_reads(left), as_python_reads(right)]
    except (TypeError, ValueError, RecursionError):
        return
    assert (state_key(left) == state_key(right)) == same(*plain)


@settings(deadline=None, suppress_health_check=list(HealthCheck))
@given(Value)
def test_whatever_a_tool_returns_is_answered_in_a_line_that_the_harness_reads(value: Any) -> None:
    def tool() -> Any:
        return value

    server = Server("s")
    server.add_tool(tool, name="t")
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "t"}}
    line = server.handle(json.dumps(asked).encode())
    assert line is not None
    (block,) = read(line)["result"]["content"]
    assert isinstance(block["text"], str)
