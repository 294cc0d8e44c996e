"""Records at random, by hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st

from gymcp.outcome import Outcome
from gymcp.types import (
    Action,
    Message,
    Observation,
    Sampled,
    Step,
    Tool,
    ToolCall,
    ToolResult,
    Trajectory,
    Usage,
    UserToolCalls,
)

# every code point, lone surrogates and NUL among them
texts = st.text(st.characters(exclude_categories=()), max_size=12)
finite = st.floats(allow_nan=False)
whole = st.integers(-(2**63), 2**63 - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(texts, json_values, max_size=3)
components = st.dictionaries(texts, finite, max_size=3)
a_call = st.builds(ToolCall, id=texts, name=texts, arguments=objects | texts)
calls = st.lists(a_call, max_size=2).map(tuple)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts | st.text("ab\udcff", min_size=600, max_size=900),
    tool_calls=calls,
    tool_call_id=st.none() | texts,
    is_error=st.booleans(),
)
tools = st.lists(
    st.builds(Tool, name=texts, description=texts, input_schema=objects, annotations=objects), max_size=2
).map(tuple)
token_lists = st.lists(st.integers(0, 3) | whole, max_size=6).map(tuple)
sampled = st.builds(
    Sampled,
    prompt_ids=token_lists,
    ids=token_lists,
    logprobs=st.lists(finite, max_size=4).map(tuple),
    versions=st.lists(st.tuples(texts, whole, whole), max_size=2).map(tuple),
    finish=st.sampled_from(("stop", "length")),
)
results = st.builds(
    ToolResult,
    call_id=texts,
    content=texts,
    is_error=st.booleans(),
    seconds=finite,
    content_bytes=whole,
    cost=finite,
    executed_call=st.none() | a_call,
)
steps = st.builds(
    Step,
    turn=st.integers(0, 2**63 - 1),
    observation=st.builds(Observation, messages=st.lists(messages, max_size=2).map(tuple), tools=tools),
    action=st.builds(Action, text=texts, tool_calls=calls),
    results=st.lists(results, max_size=2).map(tuple),
    user_acts=st.lists(
        st.builds(UserToolCalls, calls=calls, results=st.lists(results, max_size=2).map(tuple)), max_size=2
    ).map(tuple),
    reward=finite,
    state_key=texts,
    world_key=texts,
    state_ref=st.none() | texts,
    sampled=st.none() | sampled,
    valid=st.booleans(),
    agent_s=finite,
)
trajectories = st.builds(
    Trajectory,
    id=texts,
    env=texts,
    task=texts,
    group=texts,
    seed=st.integers(-(2**130), 2**130),
    trial=st.integers(0, 2**40),
    parent=st.none() | texts,
    steps=st.lists(steps, max_size=3).map(tuple),
    initial_key=texts,
    final_key=texts,
    final_state=st.none() | texts,
    outcome=st.sampled_from(Outcome),
    score=st.none() | st.floats(0, 1),
    components=components,
    reason=texts,
    usage=st.builds(Usage, tool_calls=whole, cost=finite, wall_s=finite),
    provenance=objects,
)
