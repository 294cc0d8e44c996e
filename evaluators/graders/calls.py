"""Graders of tool calls: for worlds without a state worth comparing, and for partial credit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders.matching import calls_with_results, pair_nearest, same_call
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import brief
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, ToolCall, Trajectory


def calls_made(
    *, target_key: str | None = None, in_order: bool = True, must_succeed: bool = True, more_arguments: bool = False
) -> Grader:
    """Grader: 1 if every call of the task's target (or of its entry `target_key`) was made, else 0.

    The target is a list of ``{"name": ..., "arguments": {...}}``; other calls in between do no harm. `in_order`: the
    target's calls must come in the target's order. `must_succeed`: a call that returned an error counts as not made.
    `more_arguments`: arguments that the target does not name may have any value. Grading raises GraderError if the
    target is no such list or is empty.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected = _target_calls(task, target_key)
        remaining = _list_calls(trajectory, must_succeed)
        for number, call in enumerate(expected, 1):
            index = next(
                (
                    at
                    for at, candidate in enumerate(remaining)
                    if same_call(candidate, call, more_arguments=more_arguments)
                ),
                None,
            )
            if index is None:
                return Score(
                    value=0.0,
                    components={"calls_found": (number - 1) / len(expected)},
                    reason=f"call {number} of {len(expected)} was not made: {_format_call(call)}",
                )
            remaining = remaining[index + 1 :] if in_order else remaining[:index] + remaining[index + 1 :]
        return Score(value=1.0, components={"calls_found": 1.0}, reason="every wanted call was made")

    return grade


def calls_alike(*, target_key: str | None = None, must_succeed: bool = False, others: bool = True) -> Grader:
    """Grader: similarity between the calls and those of the task's target (or of its entry `target_key`), in any order.

    Each call of the target is paired with the nearest call of its tool and counts with its share of equal arguments, or
    with 0 if it has no pair; the score is the mean. Components: ``tools``, the share of the target's calls whose tool
    was called; ``arguments``, the mean share of equal arguments over those. Unless `others`, a call in no pair makes
    the score 0. Grading raises GraderError as `calls_made` does.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected = _target_calls(task, target_key)
        calls = _list_calls(trajectory, must_succeed)
        pairs = pair_nearest(calls, expected)
        value = sum(share for _, share in pairs.values()) / len(expected)
        components = {"tools": len(pairs) / len(expected)}
        if pairs:
            components["arguments"] = sum(share for _, share in pairs.values()) / len(pairs)
        paired = {m for m, _ in pairs.values()}
        if not others and (stray := next((call for m, call in enumerate(calls) if m not in paired), None)):
            return Score(value=0.0, components=components, reason=f"nobody asked for {_format_call(stray)}")
        return Score(value=value, components=components, reason=_worst_fault(calls, expected, pairs))

    return grade


def as_target(calls: Sequence[ToolCall]) -> list[dict[str, Json]]:
    """Gold calls as a target of `calls_made`. Raises ConfigError for arguments that are no object."""
    target = []
    for call in calls:
        if not isinstance(call.arguments, Mapping):
            raise ConfigError(f"call '{call.id}': its arguments are a text, which no call can be compared with")
        target.append({"name": call.name, "arguments": dict(call.arguments)})
    return target


def with_milestones(grader: Grader) -> Grader:
    """Grader with a component ``milestones`` beside the verdict: the share of the gold calls that were made, in any
    order.

    The component is partial credit for trainers and reports, never part of the score. A gold call counts once, and only
    if the tool did not fail. Without gold calls the share is the score.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        score = grader(task, trajectory, states)
        expected = [call for turn in task.gold for call in turn.calls]
        remaining = list(expected)
        for call in _list_calls(trajectory, must_succeed=True):
            match = next((n for n, each in enumerate(remaining) if same_call(call, each)), None)
            if match is not None:
                del remaining[match]
        reached = (len(expected) - len(remaining)) / len(expected) if expected else score.value
        return replace(score, components={**score.components, "milestones": reached})

    return grade


def call_of(described: Json, who: str) -> ToolCall:
    """The call that a target describes. Raises GraderError for a value that describes none."""
    if (
        not isinstance(described, Mapping)
        or not isinstance(described.get("name"), str)
        or not isinstance(described.get("arguments"), Mapping)
    ):
        raise GraderError(f"{who}: {brief(described)} in the target is not a call with name and arguments")
    return ToolCall(id="", name=described["name"], arguments=described["arguments"])


def _list_calls(trajectory: Trajectory, must_succeed: bool) -> list[ToolCall]:
    return [call for _, call, result in calls_with_results(trajectory) if not (result.is_error and must_succeed)]


def _target_calls(task: Task, key: str | None) -> list[ToolCall]:
    target = target_of(task, key)
    if not isinstance(target, list | tuple) or not target:
        raise GraderError(f"task '{task.id}': the target is {brief(target)}, not a list of calls")
    return [call_of(call, f"task '{task.id}'") for call in target]


def _format_call(call: ToolCall) -> str:
    return f"{call.name}({brief(call.arguments)})"


def _worst_fault(
    calls: Sequence[ToolCall], expected: Sequence[ToolCall], pairs: Mapping[int, tuple[int, float]]
) -> str:
    """Largest fault of the calls, in words."""
    if missing := next((call for w, call in enumerate(expected) if w not in pairs), None):
        return f"no call stands for {_format_call(missing)}"
    worst = min(pairs, key=lambda w: pairs[w][1])
    m, share = pairs[worst]
    if share == 1:
        return "every wanted call was made"
    return f"{_format_call(calls[m])} stands for {_format_call(expected[worst])}"
