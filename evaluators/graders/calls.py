"""A grader for worlds that hold no state worth comparing: were the right calls made?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders.difference import first_difference, shown
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, ToolCall, Trajectory


def calls_made(
    *, target_key: str | None = None, in_order: bool = True, must_succeed: bool = True, more_arguments: bool = False
) -> Grader:
    """1 where every call of the task's target (or of what it has under `target_key`) was made, else 0.

    The target is a list of ``{"name": ..., "arguments": {...}}``. Other calls between them do no harm. `in_order`: the
    wanted calls must come in the target's order. `must_succeed`: a call that the tool answered with an error counts as
    not made. `more_arguments`: arguments that the target does not name may have any value. Raises GraderError, when
    grading, where the target is no such list or is empty.
    """

    same = _includes if more_arguments else _same

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        wanted = _wanted(task, target_key)
        made = [call for call, is_error in _calls(trajectory) if not (is_error and must_succeed)]
        left: list[ToolCall] = made
        for number, call in enumerate(wanted, 1):
            index = next((at for at, candidate in enumerate(left) if same(candidate, call)), None)
            if index is None:
                what = f"{call['name']}({shown(call['arguments'])})"
                return Score(
                    value=0.0,
                    components={"calls_found": (number - 1) / len(wanted)},
                    reason=f"call {number} of {len(wanted)} was not made: {what}",
                )
            left = left[index + 1 :] if in_order else left[:index] + left[index + 1 :]
        return Score(value=1.0, components={"calls_found": 1.0}, reason="every wanted call was made")

    return grade


def as_target(calls: Sequence[ToolCall]) -> list[dict[str, Json]]:
    """Gold calls as a target of `calls_made`. Raises ConfigError for arguments that are no object."""
    target = []
    for call in calls:
        if not isinstance(call.arguments, Mapping):
            raise ConfigError(f"call '{call.id}': its arguments are a text, which no call can be compared with")
        target.append({"name": call.name, "arguments": dict(call.arguments)})
    return target


def _calls(trajectory: Trajectory) -> Iterator[tuple[ToolCall, bool]]:
    for step in trajectory.steps:
        errors = {result.call_id: result.is_error for result in step.results}
        for call in step.action.tool_calls:
            if call.id in errors:
                yield call, errors[call.id]


def _same(call: ToolCall, wanted: Mapping[str, Json]) -> bool:
    return call.name == wanted["name"] and first_difference(call.arguments, wanted["arguments"]) is None


def _includes(call: ToolCall, wanted: Mapping[str, Json]) -> bool:
    if not isinstance(call.arguments, Mapping):
        return False
    named = {key: value for key, value in call.arguments.items() if key in wanted["arguments"]}
    return call.name == wanted["name"] and first_difference(named, wanted["arguments"]) is None


def _wanted(task: Task, key: str | None) -> list[Mapping[str, Json]]:
    target = task.target
    if key is not None:
        target = target.get(key) if isinstance(target, Mapping) else None
    if not isinstance(target, list | tuple) or not target:
        raise GraderError(f"task '{task.id}': the target is {shown(target)}, not a list of calls")
    for call in target:
        if not isinstance(call, Mapping) or not isinstance(call.get("name"), str) or "arguments" not in call:
            raise GraderError(f"task '{task.id}': {shown(call)} in the target is not a call with name and arguments")
    return list(target)
