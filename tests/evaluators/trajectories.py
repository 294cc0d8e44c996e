"""Short ways to write the records of episodes that tests grade."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import pytest

from gymcp.protocols import Grader
from gymcp.types import Action, Json, Observation, Score, Step, Task, Tool, ToolCall, ToolResult, Trajectory


def call(name: str, _id: str = "", **arguments: Json) -> ToolCall:
    return ToolCall(id=_id or f"{name}-{sorted(arguments.items())}", name=name, arguments=arguments)


def call_step(
    *calls: ToolCall, failed: bool | Container[ToolCall] = False, tools: tuple[Tool, ...] = (), **fields: Json
) -> Step:
    """A step that makes these calls; `failed`: all of them fail, or those that it contains."""
    results = tuple(
        ToolResult(call_id=each.id, content="ok", is_error=failed if isinstance(failed, bool) else each in failed)
        for each in calls
    )
    observation = Observation(messages=(), tools=tools)
    return Step(turn=0, observation=observation, action=Action(tool_calls=calls), results=results, **fields)


def text_step(text: str, *calls: ToolCall, **fields: Json) -> Step:
    """A step with this text, and with calls that have no results."""
    action = Action(text=text, tool_calls=calls)
    return Step(turn=0, observation=Observation(messages=(), tools=()), action=action, **fields)


def episode(*steps: Step, final_state: str | None = "end") -> Trajectory:
    return Trajectory(id="1", env="e", task="a", steps=steps, final_state=final_state)


def verdict(
    grader: Grader,
    target: Json,
    *steps: Step,
    state: Json = None,
    initial: Json = None,
    states: dict[str, Json] | None = None,
) -> Score:
    """The grader's verdict on an episode of these steps that ends in `state`; `states` are further ones by name."""
    recorded = {"end": state, **(states or {})}
    task = Task(id="a", prompts=("go",), target=target, initial_state=initial)
    return grader(task, episode(*steps), lambda ref: recorded[ref])


def no_states(ref: str) -> Json:
    """State reader of an episode without recorded states."""
    raise KeyError(ref)


def near(value: float, tolerance: float = 1e-9) -> Any:
    """Equal to any number within the tolerance, absolute or relative."""
    return pytest.approx(value, rel=tolerance, abs=tolerance)
