"""Milestones that an episode must pass, in any order that their dependencies allow, and minefields that it must avoid.

They give dense credit that does not depend on the agent's path. Source: ToolSandbox, arXiv:2408.04682.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter

from gymcp.errors import GraderError
from gymcp.evaluators.graders.answers import normalise_answer
from gymcp.evaluators.graders.calls import call_of
from gymcp.evaluators.graders.matching import same_call, server_calls
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import brief, first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Step, Task, ToolCall, ToolResult, Trajectory

KINDS = ("call", "state", "says")


def milestones(*, target_key: str | None = None) -> Grader:
    """Grader: the share of milestones that were passed; 0 if a minefield was stepped on.

    The target is ``{"milestones": [...], "minefields": [...]}``, the latter optional. Each entry has a ``name`` and one
    condition:

    * ``"call": {"name", "arguments"}``: that call was made and did not fail; it may have more arguments;
    * ``"state": {...}``: after a step the world's state included all of that;
    * ``"says": "..."``: a text of the agent contained that, compared after `normalise_answer`.

    A milestone's ``after`` names milestones that must have been passed at an earlier moment; a moment is one call, or
    the end of a step. Components: one for each milestone, and ``minefields``, the number that was stepped on. Grading
    raises GraderError if the target is no such object, or its milestones depend on each other in a circle.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        goals, mines = _read(task, target_key)
        moments = _moments(trajectory)
        read = cache(states)
        passed: dict[str, int] = {}
        missed: list[str] = []
        for goal in goals:  # dependencies first
            lacking = [name for name in goal.after if name not in passed]
            earliest = max((passed[name] + 1 for name in goal.after if name in passed), default=0)
            at = None if lacking else _first(goal, moments, read, earliest)
            if at is not None:
                passed[goal.name] = at
            else:
                missed.append(_why_missed(goal, lacking))
        stepped_on = [mine for mine in mines if _first(mine, moments, read, 0) is not None]
        components = {goal.name: float(goal.name in passed) for goal in goals}
        components["minefields"] = float(len(stepped_on))
        if stepped_on:
            return Score(value=0.0, components=components, reason=f"'{stepped_on[0].name}' must not happen, and did")
        reason = "; ".join(missed) or f"all {len(goals)} milestones were passed"
        return Score(value=len(passed) / len(goals), components=components, reason=reason)

    return grade


@dataclass(frozen=True, slots=True, kw_only=True)
class _Event:
    name: str
    kind: str
    wanted: Json
    """A `ToolCall`, a part of a state, or a normalised text."""
    after: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    call: ToolCall | None = None
    """A call that did not fail."""
    step: Step | None = None
    """A step that has just ended."""


def _moments(trajectory: Trajectory) -> list[_Moment]:
    moments: list[_Moment] = []
    for step in trajectory.steps:
        results: Mapping[str, ToolResult] = {result.call_id: result for result in step.results}
        for call in server_calls(step):
            failed = call.id not in results or results[call.id].is_error
            moments.append(_Moment(call=None if failed else call))
        moments.append(_Moment(step=step))
    return moments


def _first(event: _Event, moments: Sequence[_Moment], states: StateReader, earliest: int) -> int | None:
    """Index of the first moment, from `earliest` on, at which the event happens; None if it never does."""
    return next((at for at in range(earliest, len(moments)) if _happens(event, moments[at], states)), None)


def _happens(event: _Event, moment: _Moment, states: StateReader) -> bool:
    if event.kind == "call":
        return moment.call is not None and same_call(moment.call, event.wanted, more_arguments=True)
    if moment.step is None:
        return False
    if event.kind == "says":
        return event.wanted in normalise_answer(moment.step.action.text)
    if moment.step.state_ref is None:
        raise GraderError(f"'{event.name}' asks for a state, and none was recorded: the servers declare none")
    return first_difference(states(moment.step.state_ref), event.wanted, more_keys=True) is None


def _why_missed(goal: _Event, lacking: Sequence[str]) -> str:
    if lacking:
        return f"'{goal.name}' needs '{lacking[0]}' first"
    return f"'{goal.name}' did not happen" + (f" after '{goal.after[-1]}'" if goal.after else "")


def _read(task: Task, key: str | None) -> tuple[list[_Event], list[_Event]]:
    """The milestones, dependencies first, and the minefields."""
    target = target_of(task, key)
    who = f"task '{task.id}'"
    if not isinstance(target, Mapping) or not isinstance(target.get("milestones"), list | tuple):
        raise GraderError(f"{who}: the target is {brief(target)}, not an object with milestones")
    goals = {goal.name: goal for goal in (_event(each, who) for each in target["milestones"])}
    if not goals or len(goals) < len(target["milestones"]):
        raise GraderError(f"{who}: the target has {'two milestones of one name' if goals else 'no milestones'}")
    for goal in goals.values():
        if unknown := [name for name in goal.after if name not in goals]:
            raise GraderError(f"{who}: '{goal.name}' comes after '{unknown[0]}', which is no milestone")
    try:
        order = list(TopologicalSorter({goal.name: goal.after for goal in goals.values()}).static_order())
    except CycleError as error:
        raise GraderError(f"{who}: milestones come after each other in a circle: {', '.join(error.args[1])}") from error
    return [goals[name] for name in order], [_event(each, who) for each in target.get("minefields", ())]


def _event(given: Json, who: str) -> _Event:
    kinds = [kind for kind in KINDS if isinstance(given, Mapping) and kind in given]
    if len(kinds) != 1 or not isinstance(given.get("name"), str):
        raise GraderError(f"{who}: {brief(given)} has not a name and one of {', '.join(KINDS)}")
    condition = given[kinds[0]]
    if kinds[0] == "call":
        condition = call_of(condition, who)
    elif kinds[0] == "says":
        condition = normalise_answer(condition) if isinstance(condition, str) else ""
        if not condition:
            raise GraderError(f"{who}: '{given['name']}' waits for an empty text")
    return _Event(name=given["name"], kind=kinds[0], wanted=condition, after=tuple(given.get("after", ())))
