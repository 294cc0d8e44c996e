"""Graders of the final state: equal to the expected one, or changed as expected and in no other way."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase

from gymcp.errors import GraderError
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import ABSENT, STATE_RULE, brief, differences, first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

MAX_NAMED = 3
"""Most changes that a reason names; it gives the number of the others."""


def final_state_equals(*, target_key: str | None = None) -> Grader:
    """Grader: 1 if the last state equals the task's target (or the target's entry `target_key`), else 0.

    Grading raises GraderError if no state was recorded or the target lacks the key, since that says nothing about the
    agent.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        difference = first_difference(final_state(trajectory, states), target_of(task, target_key))
        if difference is None:
            return Score(value=1.0, reason="the final state is the wanted one")
        return Score(value=0.0, reason=f"in the final state {difference}")

    return grade


def state_changes(*, target_key: str | None = None, before: Callable[[Task], Json] | None = None) -> Grader:
    """Grader: 1 if the world changed as expected and in no other way, else 0.

    The target is ``{"set": {pointer: value}, "removed": [pointer], "may_change": [pattern]}``, each part optional, with
    JSON pointers (RFC 6901) into the state; in patterns ``*`` stands for anything. `before` gives the world's first
    state (None: the task's ``initial_state``). Components: ``wanted_changes``, the share of the expected changes that
    were made; ``collateral``, the number of other places that changed. Grading raises GraderError if no state was
    recorded, or if the target is no such object or expects no change.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected, free = _parse_target(target_of(task, target_key))
        start = task.initial_state if before is None else before(task)
        right = start
        for pointer, value in expected.items():
            right = _with(right, _parts(pointer), value)
        end = final_state(trajectory, states)
        missing = [pointer for pointer, value in expected.items() if not _is(end, pointer, value)]
        collateral = [
            (pointer, actual)
            for pointer, actual in _changes(right, end)
            if not any(f"{pointer}/".startswith(f"{each}/") for each in expected)
            and not any(fnmatchcase(pointer, each) for each in free)
        ]
        faults = [
            f"{pointer} is {_brief(_at(end, pointer))}, wanted {_brief(expected[pointer])}" for pointer in missing
        ] + [
            f"{pointer} was {_brief(_at(start, pointer))} and is {_brief(actual)}, which nobody asked for"
            for pointer, actual in collateral
        ]
        return Score(
            value=0.0 if faults else 1.0,
            components={"wanted_changes": 1 - len(missing) / len(expected), "collateral": float(len(collateral))},
            reason=_join_faults(faults) if faults else "the world changed as wanted, and nothing else did",
        )

    return grade


def final_state(trajectory: Trajectory, states: StateReader) -> Json:
    """The last recorded state. Raises GraderError if there is none."""
    if trajectory.final_state is None:
        raise GraderError("no final state was recorded: the servers declare none")
    return states(trajectory.final_state)


def _changes(old: Json, new: Json) -> Iterator[tuple[str, Json]]:
    """(JSON pointer, new value) of every difference; `ABSENT` is the new value of a place that was removed."""
    for each in differences(old, new, STATE_RULE):
        yield "".join(f"/{_escape(key)}" for key in each.path), each.right


def _parse_target(target: Json) -> tuple[dict[str, Json], list[str]]:
    """(expected value of each pointer, patterns of places that may change). Raises GraderError for an invalid
    target."""
    known = {"set": Mapping, "removed": list | tuple, "may_change": list | tuple}
    if not isinstance(target, Mapping) or not target.keys() <= known.keys():
        raise GraderError(f"the target is {brief(target)}, not an object of {', '.join(known)}")
    for part, kind in known.items():
        if part in target and not isinstance(target[part], kind):
            raise GraderError(f"in the target, {part} is {brief(target[part])}")
    expected = {**target.get("set", {}), **dict.fromkeys(target.get("removed", ()), ABSENT)}
    if not expected:
        raise GraderError("the target wants no change: final_state_equals says that nothing may change")
    for pointer in expected:
        if not pointer.startswith("/"):
            raise GraderError(f"in the target, {pointer!r} is no JSON pointer: it begins with /")
    return expected, list(target.get("may_change", ()))


def _is(state: Json, pointer: str, expected: Json) -> bool:
    value = _at(state, pointer)
    if value is ABSENT or expected is ABSENT:
        return value is expected
    return first_difference(value, expected) is None


def _parts(pointer: str) -> list[str]:
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def _at(state: Json, pointer: str) -> Json:
    for part in _parts(pointer):
        if isinstance(state, Mapping):
            state = state.get(part, ABSENT)
        elif isinstance(state, list | tuple) and part.isdecimal() and int(part) < len(state):
            state = state[int(part)]
        else:
            return ABSENT
    return state


def _with(state: Json, parts: list[str], value: Json) -> Json:
    """The state with the value at that place, or without it if the value is `ABSENT`; missing objects on the way are
    added.

    Raises GraderError for a place that cannot exist.
    """
    if not parts:
        return value
    first, rest = parts[0], parts[1:]
    if isinstance(state, Mapping) or state is ABSENT:
        whole = dict(state) if isinstance(state, Mapping) else {}
        inner = _with(whole.get(first, ABSENT), rest, value)
        if inner is ABSENT:
            whole.pop(first, None)
        else:
            whole[first] = inner
        return whole
    if isinstance(state, list | tuple) and first.isdecimal() and int(first) <= len(state):
        n = int(first)
        inner = _with(state[n] if n < len(state) else ABSENT, rest, value)
        return [*state[:n], *(() if inner is ABSENT else (inner,)), *state[n + 1 :]]
    raise GraderError(f"the target changes {first!r} in {brief(state)}, which has no such place")


def _escape(key: Json) -> str:
    return str(key).replace("~", "~0").replace("/", "~1")


def _brief(value: Json) -> str:
    return "nothing" if value is ABSENT else brief(value)


def _join_faults(faults: list[str]) -> str:
    more = f"; and {len(faults) - MAX_NAMED} more" if len(faults) > MAX_NAMED else ""
    return "; ".join(faults[:MAX_NAMED]) + more
