"""Calls beside calls: which of those made are which of those wanted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

from gymcp.evaluators.graders.difference import first_difference
from gymcp.types import Json, Step, ToolCall, ToolResult, Trajectory


def served_calls(step: Step) -> tuple[ToolCall, ...]:
    """The step's calls as the servers know them, whatever the agent was told that they are called."""
    known = {result.call_id: result.executed_call for result in step.results if result.executed_call is not None}
    return tuple(known.get(call.id, call) for call in step.action.tool_calls)


def answered_calls(trajectory: Trajectory) -> Iterator[tuple[Step, ToolCall, ToolResult]]:
    """Every call that has a result, in order, as the servers know it."""
    for step in trajectory.steps:
        results = {result.call_id: result for result in step.results}
        for call in served_calls(step):
            if call.id in results:
                yield step, call, results[call.id]


def arguments_of(call: ToolCall) -> Mapping[str, Json] | None:
    """The call's arguments, read from its text where they are one; None where that is no JSON object."""
    if isinstance(call.arguments, str):
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError):
            return None
        return arguments if isinstance(arguments, dict) else None
    return call.arguments


def same_call(made: ToolCall, wanted: ToolCall, *, more_arguments: bool = False) -> bool:
    """True for the same tool with equal arguments; `more_arguments`: `made` may have some that `wanted` has not."""
    if made.name != wanted.name:
        return False
    arguments, needed = arguments_of(made), arguments_of(wanted)
    if arguments is None or needed is None:
        return False
    if more_arguments:
        arguments = {name: value for name, value in arguments.items() if name in needed}
    return first_difference(arguments, needed) is None


def share_of_arguments(made: ToolCall, wanted: ToolCall) -> float:
    """Of all argument names in either, the share whose values are equal; 1 where neither has any."""
    arguments, needed = arguments_of(made), arguments_of(wanted)
    if arguments is None or needed is None:
        return 0.0
    names = {*arguments, *needed}
    same = sum(
        name in arguments and name in needed and first_difference(arguments[name], needed[name]) is None
        for name in names
    )
    return same / len(names) if names else 1.0


def nearest_pairs(made: Sequence[ToolCall], wanted: Sequence[ToolCall]) -> dict[int, tuple[int, float]]:
    """Index in `wanted` -> (index in `made`, share of arguments): calls of one tool, the nearest pairs first.

    No call is in two pairs; a wanted call whose tool was not called often enough is in none.
    """
    of_tool: dict[str, list[int]] = {}
    for m, call in enumerate(made):
        of_tool.setdefault(call.name, []).append(m)
    nearness = sorted(
        (-share_of_arguments(made[m], gold), w, m) for w, gold in enumerate(wanted) for m in of_tool.get(gold.name, ())
    )
    pairs: dict[int, tuple[int, float]] = {}
    used: set[int] = set()
    for share, w, m in nearness:
        if w not in pairs and m not in used:
            pairs[w] = (m, -share)
            used.add(m)
    return pairs
