"""Validation of a call and its arguments before a server sees them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gymcp.types import Action, Json, Tool, ToolCall

MAX_DEPTH = 60
"""Most levels of nested arrays and objects in arguments; the native runtime accepts a few more."""


def check_call(call: ToolCall, offered: Sequence[Tool], max_bytes: int) -> dict[str, Json] | str:
    """The arguments of a call of one of the offered tools; or a text that says why the call is not valid."""
    if call.parse_error:
        return f"no tool call: {call.parse_error}"
    names = [tool.name for tool in offered]
    if call.name not in names:
        return f"no tool '{call.name[:200]}'; have {', '.join(names) or 'none'}"
    arguments = check_arguments(call.arguments, max_bytes)
    return f"tool '{call.name}': {arguments}" if isinstance(arguments, str) else arguments


def make_recordable(action: Action) -> Action:
    """The action; arguments that no record can hold are replaced by an empty text, with the reason in `parse_error`.

    NaN and lone surrogates can be recorded; values that are not JSON, or are nested too deep, cannot.
    """
    if all(isinstance(call.arguments, str) or _find_fault(call.arguments) is None for call in action.tool_calls):
        return action
    return replace(action, tool_calls=tuple(map(_make_call_recordable, action.tool_calls)))


def _make_call_recordable(call: ToolCall) -> ToolCall:
    if isinstance(call.arguments, str) or (fault := _find_fault(call.arguments)) is None:
        return call
    return replace(call, arguments="", parse_error=call.parse_error or fault)


def _find_fault(arguments: Mapping[str, Json]) -> str | None:
    if _is_deeper_than(arguments, MAX_DEPTH):
        return f"the arguments are nested more than {MAX_DEPTH} deep"
    try:
        json.dumps(arguments)
    except (TypeError, ValueError, RecursionError) as error:
        return f"the arguments cannot be written as JSON: {error}"
    return None


def check_arguments(arguments: Mapping[str, Json] | str, max_bytes: int) -> dict[str, Json] | str:
    """The arguments as a JSON object of at most `max_bytes`; or a text that says why they are not one.

    Nothing is repaired: the arguments count as the model wrote them.
    """
    if isinstance(arguments, str):
        if len(arguments) > max_bytes:
            return _describe_excess(len(arguments), max_bytes)
        try:
            arguments = json.loads(arguments)
        except (ValueError, RecursionError) as error:
            return f"the arguments are not JSON: {error}"
    if not isinstance(arguments, Mapping):
        return f"the arguments must be a JSON object, not {type(arguments).__name__}"
    if _is_deeper_than(arguments, MAX_DEPTH):
        return f"the arguments are nested more than {MAX_DEPTH} deep"
    try:
        encoded = json.dumps(arguments, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:  # UnicodeEncodeError is a ValueError
        return f"the arguments cannot be written as JSON: {error}"
    if len(encoded) > max_bytes:
        return _describe_excess(len(encoded), max_bytes)
    return dict(arguments)


def _is_deeper_than(value: Json, depth: int) -> bool:
    """True if the value has more than `depth` levels; recurses no deeper than that, however deep the value is."""
    children = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return depth < 0 or any(_is_deeper_than(child, depth - 1) for child in children)


def _describe_excess(size: int, max_bytes: int) -> str:
    return f"the arguments are {size} bytes long; at most {max_bytes} are taken"
