"""The arguments of a call, before any server sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gymcp.types import Action, Json, Tool, ToolCall

MAX_DEPTH = 60
"""Of nested arrays and objects; the native runtime takes a little more."""


def check_call(call: ToolCall, offered: Sequence[Tool], max_bytes: int) -> dict[str, Json] | str:
    """The arguments of a call of one of these tools, or in words why it is none."""
    if call.parse_error:
        return f"no tool call: {call.parse_error}"
    names = [tool.name for tool in offered]
    if call.name not in names:
        return f"no tool '{call.name[:200]}'; have {', '.join(names) or 'none'}"
    arguments = check_arguments(call.arguments, max_bytes)
    return f"tool '{call.name}': {arguments}" if isinstance(arguments, str) else arguments


def recordable(action: Action) -> Action:
    """The action, with every argument that no record can hold as a text in its place, and the reason as `parse_error`.

    NaN and halves of characters can be recorded; what is no JSON, or is nested too deep, cannot.
    """
    if all(isinstance(call.arguments, str) or _fault(call.arguments) is None for call in action.tool_calls):
        return action
    return replace(action, tool_calls=tuple(map(_recordable, action.tool_calls)))


def _recordable(call: ToolCall) -> ToolCall:
    if isinstance(call.arguments, str) or (fault := _fault(call.arguments)) is None:
        return call
    return replace(call, arguments="", parse_error=call.parse_error or fault)


def _fault(arguments: Mapping[str, Json]) -> str | None:
    if _deeper_than(arguments, MAX_DEPTH):
        return f"the arguments are nested more than {MAX_DEPTH} deep"
    try:
        json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        return f"the arguments cannot be written as JSON: {error}"
    return None


def check_arguments(arguments: Mapping[str, Json] | str, max_bytes: int) -> dict[str, Json] | str:
    """The arguments as a JSON object of at most `max_bytes`, or in words why they are none.

    Nothing is repaired: what the model wrote is what counts.
    """
    if isinstance(arguments, str):
        if len(arguments) > max_bytes:
            return _too_long(len(arguments), max_bytes)
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments are not JSON: {error}"
    if not isinstance(arguments, Mapping):
        return f"the arguments must be a JSON object, not {type(arguments).__name__}"
    if _deeper_than(arguments, MAX_DEPTH):
        return f"the arguments are nested more than {MAX_DEPTH} deep"
    try:
        encoded = json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        return f"the arguments cannot be written as JSON: {error}"
    if len(encoded) > max_bytes:
        return _too_long(len(encoded), max_bytes)
    return dict(arguments)


def _deeper_than(value: Json, depth: int) -> bool:
    """Without recursion beyond `depth`: the value may be as deep as it likes."""
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return depth < 0 or any(_deeper_than(child, depth - 1) for child in children)


def _too_long(size: int, max_bytes: int) -> str:
    return f"the arguments are {size} bytes long; at most {max_bytes} are taken"
