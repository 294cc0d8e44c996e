"""Matching of the calls that were made with the calls that were expected."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from gymcp.evaluators.json_diff import first_difference
from gymcp.types import Json, Step, ToolCall, ToolResult, Trajectory


def server_calls(step: Step) -> tuple[ToolCall, ...]:
    """The step's calls under the names that the servers know, if a wrapper gave the agent other names."""
    known = {result.call_id: result.executed_call for result in step.results if result.executed_call is not None}
    return tuple(known.get(call.id, call) for call in step.action.tool_calls)


def calls_with_results(trajectory: Trajectory) -> Iterator[tuple[Step, ToolCall, ToolResult]]:
    """Every call that has a result, in order, under the name that the server knows."""
    for step in trajectory.steps:
        results = {result.call_id: result for result in step.results}
        for call in server_calls(step):
            if call.id in results:
                yield step, call, results[call.id]


def parse_arguments(call: ToolCall) -> Mapping[str, Json] | None:
    """The call's arguments, parsed if they are a text; None if they are no JSON object."""
    if isinstance(call.arguments, str):
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return None
        return arguments if isinstance(arguments, dict) else None
    return call.arguments


def same_call(call: ToolCall, expected: ToolCall, *, more_arguments: bool = False) -> bool:
    """True for the same tool with equal arguments; `more_arguments`: `call` may have arguments that `expected`
    lacks."""
    if call.name != expected.name:
        return False
    arguments, required = parse_arguments(call), parse_arguments(expected)
    if arguments is None or required is None:
        return False
    if more_arguments:
        arguments = {name: value for name, value in arguments.items() if name in required}
    return first_difference(arguments, required) is None


def share_of_arguments(call: ToolCall, expected: ToolCall) -> float:
    """Share of all argument names in either call whose values are equal; 1 if neither has any."""
    arguments, required = parse_arguments(call), parse_arguments(expected)
    if arguments is None or required is None:
        return 0.0
    names = {*arguments, *required}
    same = sum(
        name in arguments and name in required and first_difference(arguments[name], required[name]) is None
        for name in names
    )
    return same / len(names) if names else 1.0


def pair_nearest(calls: Sequence[ToolCall], expected: Sequence[ToolCall]) -> dict[int, tuple[int, float]]:
    """Index in `expected` -> (index in `calls`, share of arguments): calls of one tool, the nearest pairs first.

    No call is in two pairs; an expected call whose tool was not called often enough is in none.
    """
    of_tool: dict[str, list[int]] = {}
    for m, call in enumerate(calls):
        of_tool.setdefault(call.name, []).append(m)
    candidates = sorted(
        (-share_of_arguments(calls[m], gold), w, m)
        for w, gold in enumerate(expected)
        for m in of_tool.get(gold.name, ())
    )
    pairs: dict[int, tuple[int, float]] = {}
    used: set[int] = set()
    for share, w, m in candidates:
        if w not in pairs and m not in used:
            pairs[w] = (m, -share)
            used.add(m)
    return pairs
