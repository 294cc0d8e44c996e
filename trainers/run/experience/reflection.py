"""Reflection: a task that keeps failing is tried again with a failed attempt in its prompt. A script writes it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace

from gymcp.trainers.rollouts.curricula.protocol import PlannedGroup
from gymcp.trainers.run.experience.replay_buffer import KeptEpisode, ReplayBuffer
from gymcp.types import ToolCall, Trajectory


def add_reflections(
    groups: Sequence[PlannedGroup], buffer: ReplayBuffer, most_calls: int, load: Callable[[KeptEpisode], Trajectory]
) -> list[PlannedGroup]:
    """The groups; the prompt of a task whose kept episodes all failed begins with a reflection on the newest of them.

    The task is otherwise the same, so its episodes are graded as before. `load`: the record of a kept episode.

    Source: the in-context self-reflection of arXiv:2601.19620 (R3), where the model reflects; here a script does.
    """
    failures = [find_failed(buffer, group.task.id) for group in groups]
    return [
        group if failed is None else _begin_with(write_reflection(load(failed), most_calls), group)
        for group, failed in zip(groups, failures, strict=True)
    ]


def find_failed(buffer: ReplayBuffer, task: str) -> KeptEpisode | None:
    """The newest kept episode of a task, if none of those that are kept is solved."""
    kept = buffer.tasks.get(task, ())
    return kept[-1] if kept and not any(each.is_solved for each in kept) else None


def write_reflection(record: Trajectory, most_calls: int) -> str:
    """A text on the last calls of a failed episode, with the advice to do something else."""
    calls = [call for step in record.steps for call in step.action.tool_calls]
    shown = [_write_call(call) for call in calls[-most_calls:]]
    left = len(calls) - len(shown)
    what = ", then ".join(([f"{left} other calls"] if left else []) + shown) or "no call"
    return f"An earlier try at this failed. It made: {what}. Do something else."


def _begin_with(text: str, group: PlannedGroup) -> PlannedGroup:
    first, *later = group.task.prompts
    return replace(group, task=replace(group.task, prompts=(f"{text}\n\n{first}", *later)))


def _write_call(call: ToolCall) -> str:
    given = call.arguments
    if not isinstance(given, str):
        given = ", ".join(f"{key}={json.dumps(value)}" for key, value in given.items())
    return f"{call.name}({given})"
