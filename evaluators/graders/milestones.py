"""Partial credit beside the verdict, for trainers and reports; never part of the score."""

from __future__ import annotations

from dataclasses import replace

from gymcp.protocols import Grader, StateReader
from gymcp.types import Score, Task, ToolCall, Trajectory


def with_milestones(grader: Grader) -> Grader:
    """The grader's verdict with a component ``milestones``: the share of the gold calls that were made, in any order.

    A call counts once, and only where the tool did not fail. Without gold calls there are no milestones to reach, so
    the share is that of the verdict.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        score = grader(task, trajectory, states)
        wanted = [call for turn in task.gold for call in turn.calls]
        left = list(wanted)
        for step in trajectory.steps:
            for call, result in zip(step.action.tool_calls, step.results, strict=False):
                match = next((each for each in left if _same(each, call)), None)
                if match is not None and not result.is_error:
                    left.remove(match)
        reached = (len(wanted) - len(left)) / len(wanted) if wanted else score.value
        return replace(score, components={**score.components, "milestones": reached})

    return grade


def _same(a: ToolCall, b: ToolCall) -> bool:
    return (a.name, a.arguments) == (b.name, b.arguments)
