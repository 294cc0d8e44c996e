"""Records of episodes, as short as tests need them."""

from __future__ import annotations

from typing import Any

import pytest

from gymcp.protocols import Grader
from gymcp.types import Action, Json, Observation, Score, Step, Task, Tool, ToolCall, ToolResult, Trajectory


def call(name: str, _id: str = "", **arguments: Json) -> ToolCall:
    return ToolCall(id=_id or f"{name}-{sorted(arguments.items())}", name=name, arguments=arguments)


def acted(*calls: ToolCall, failed: bool = False, tools: tuple[Tool, ...] = (), **fields: Json) -> Step:
    """A step that makes these calls."""
    results = tuple(ToolResult(call_id=each.id, content="ok", is_error=failed) for each in calls)
    seen = Observation(messages=(), tools=tools)
    return Step(turn=0, observation=seen, action=Action(tool_calls=calls), results=results, **fields)


def said(text: str, **fields: Json) -> Step:
    """A step that says this."""
    return Step(turn=0, observation=Observation(messages=(), tools=()), action=Action(text=text), **fields)


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
    """The grader's verdict on an episode of these steps that ends in `state`; `states` are others by name."""
    recorded = {"end": state, **(states or {})}
    task = Task(id="a", prompts=("go",), target=target, initial_state=initial)
    return grader(task, episode(*steps), lambda ref: recorded[ref])


def no_states(ref: str) -> Json:
    """Of an episode that recorded none."""
    raise KeyError(ref)


def near(value: float, tolerance: float = 1e-9) -> Any:
    """Equal to what is no further from it, or a part as large as that of it."""
    return pytest.approx(value, rel=tolerance, abs=tolerance)
