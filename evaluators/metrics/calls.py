"""Figures on one episode's tool calls: invalid and redundant ones, and those that the gold solution makes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gymcp.evaluators.graders.matching import calls_with_results, pair_nearest, parse_arguments, same_call
from gymcp.types import Json, Step, Task, Tool, ToolCall, ToolResult, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class GoldFigures:
    """An episode's calls compared with the gold calls of its task, which are one solution, not the only one."""

    wanted: int
    """Number of gold calls."""
    turns: int
    """User turns of the gold solution."""
    selection: float
    """F1 between the names of the tools that were called and those that gold calls, as multisets."""
    parameters: float | None
    """Share of arguments that equal gold's, over the calls that were paired with a gold call; None if there are
    none."""
    first_error: int | None
    """Number, from 1, of the first call that is no remaining gold call, or of the first gold call that is missing at
    the end; None if exactly the gold calls were made."""
    offered: float = 1.0
    """Share of the tools of the gold calls that were on offer at some time: below 1 if retrieval of tools has missed
    some."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallFigures:
    made: int
    errors: int
    """Calls answered with an error, invalid ones included."""
    invalid: int
    """Calls that could not succeed in any world: no such tool on offer, arguments that are no JSON object, or an
    argument that is missing, unknown or of another type than the tool's schema says."""
    redundant: int
    """Calls made before in the same episode, with the same arguments and the same result, in a world that has not
    changed since. If the servers declare no state, the result alone decides."""
    gold: GoldFigures | None
    """Comparison with gold; None if the task has no gold calls."""
    decisions_s: tuple[float, ...] = ()
    """Seconds of each decision of the agent that took a measurable time."""
    requests_s: tuple[float, ...] = ()
    """Seconds of each request to the agent's model, without earlier attempts, if they were recorded."""
    first_tokens_s: tuple[float, ...] = ()
    """Seconds until the first token of each request, if they were recorded."""
    results_s: tuple[float, ...] = ()
    """Seconds of each tool call that took a measurable time."""
    costs: Mapping[str, float] = field(default_factory=dict)
    """Cost of all calls by component, if the environment's costs are known."""


def examine(trajectory: Trajectory, task: Task | None = None) -> CallFigures:
    """Figures of one episode; those on gold need `task`, and a task with gold calls."""
    calls = list(calls_with_results(trajectory))
    gold = [call for turn in task.gold for call in turn.calls] if task is not None else []
    requests = [step.request_times for step in trajectory.steps if step.request_times is not None]
    return CallFigures(
        made=len(calls),
        errors=sum(result.is_error for _, _, result in calls),
        invalid=sum(_is_invalid(call, step) for step, call, _ in calls),
        redundant=_redundant(calls),
        gold=_beside_gold([call for _, call, _ in calls], gold, len(task.gold), _tool_names(trajectory))
        if task and gold
        else None,
        decisions_s=tuple(step.agent_s for step in trajectory.steps if step.agent_s > 0),
        requests_s=tuple(times.request_s for times in requests),
        first_tokens_s=tuple(times.first_token_s for times in requests if times.first_token_s is not None),
        results_s=tuple(result.seconds for _, _, result in calls if result.seconds > 0),
    )


def _tool_names(trajectory: Trajectory) -> set[str]:
    """Names of all tools that the agent was ever shown."""
    lists = {id(step.observation.tools): step.observation.tools for step in trajectory.steps}
    return {tool.name for tools in lists.values() for tool in tools}


def _beside_gold(calls: Sequence[ToolCall], gold: Sequence[ToolCall], turns: int, offered: set[str]) -> GoldFigures:
    pairs = pair_nearest(calls, gold)
    shared = (Counter(call.name for call in calls) & Counter(call.name for call in gold)).total()
    return GoldFigures(
        wanted=len(gold),
        turns=turns,
        selection=2 * shared / (len(calls) + len(gold)),
        parameters=sum(share for _, share in pairs.values()) / len(pairs) if pairs else None,
        first_error=_first_error(calls, gold),
        offered=len(offered & {call.name for call in gold}) / len({call.name for call in gold}),
    )


def _first_error(calls: Sequence[ToolCall], expected: Sequence[ToolCall]) -> int | None:
    remaining = list(expected)
    for number, call in enumerate(calls, start=1):
        index = next((n for n, gold in enumerate(remaining) if same_call(call, gold)), None)
        if index is None:
            return number
        del remaining[index]
    return len(calls) + 1 if remaining else None


def _redundant(calls: Sequence[tuple[Step, ToolCall, ToolResult]]) -> int:
    seen: set[tuple[str, str, str, str]] = set()
    count = 0
    for step, call, result in calls:
        world = step.world_key if step.state_ref is not None else ""
        arguments = json.dumps(call.arguments, sort_keys=True, default=str)
        key = (call.name, arguments, result.content, world)
        count += key in seen
        seen.add(key)
    return count


def _is_invalid(call: ToolCall, step: Step) -> bool:
    tool = next((tool for tool in step.observation.tools if tool.name == call.name), None)
    arguments = parse_arguments(call)
    return bool(call.parse_error) or tool is None or arguments is None or not _fits(arguments, tool)


_TYPES: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int, float),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list, tuple),
    "object": (Mapping,),
    "null": (type(None),),
}


def _fits(arguments: Mapping[str, Json], tool: Tool) -> bool:
    """True if the tool's schema allows the names of the arguments and their outermost types.

    A schema comes from a server and may hold anything, so no validator runs it.
    """
    schema = tool.input_schema
    properties, required = schema.get("properties", {}), schema.get("required", ())
    if not isinstance(properties, Mapping) or not isinstance(required, list | tuple):
        return True
    if any(name not in arguments for name in required if isinstance(name, str)):
        return False
    if schema.get("additionalProperties") is False and any(name not in properties for name in arguments):
        return False
    return all(_has_type(value, properties.get(name)) for name, value in arguments.items())


def _has_type(value: Json, schema: Json) -> bool:
    types = schema.get("type") if isinstance(schema, Mapping) else None
    names = [types] if isinstance(types, str) else types
    if not isinstance(names, list | tuple) or not names or any(name not in _TYPES for name in names):
        return True
    if isinstance(value, bool):
        return "boolean" in names
    if isinstance(value, float) and not value.is_integer() and "number" not in names:
        return any(name not in ("integer", "number") and isinstance(value, _TYPES[name]) for name in names)
    return any(isinstance(value, _TYPES[name]) for name in names)


def calls_beyond_gold(task: Task, trajectory: Trajectory) -> int:
    """Number of calls beyond the gold's; 0 if the episode made no more than gold, or the task has no gold."""
    gold_calls = sum(len(turn.calls) for turn in task.gold)
    return max(trajectory.usage.tool_calls - gold_calls, 0) if task.gold else 0
