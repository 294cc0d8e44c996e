"""First divergence of two episodes of a task."""

from __future__ import annotations

import json
from itertools import zip_longest

from gymcp.types import Json, Step, Trajectory


def compare_episodes(one: Trajectory, other: Trajectory, most_steps: int) -> dict[str, Json]:
    """The first divergence of two episodes, and the rows that show both from there on, for the page.

    Rows hold steps before `most_steps` only.
    """
    parted = first_divergence(one, other)
    rows = align(one, other, max(len(one.steps), len(other.steps)) if parted is None else parted[0])
    return {
        "parted": None if parted is None else {"at": parted[0], "why": parted[1]},
        "rows": [row for row in rows if all(at is None or at < most_steps for at in row[1:])],
    }


def first_divergence(one: Trajectory, other: Trajectory) -> tuple[int, str] | None:
    """(step, difference in words) of the first step that differs; None if all steps are the same.

    Calls are the same if names and arguments are, whatever their ids; worlds are the same if their digests are.
    """
    if one.initial_key != other.initial_key:
        return 0, "they start from different worlds"
    for n, (mine, theirs) in enumerate(zip(one.steps, other.steps, strict=False)):
        if why := _difference(mine, theirs):
            return n, why
    if len(one.steps) != len(other.steps):
        shorter = min(len(one.steps), len(other.steps))
        return (
            shorter,
            f"one has ended after {shorter} steps, the other goes on to {max(len(one.steps), len(other.steps))}",
        )
    return None


def align(one: Trajectory, other: Trajectory, start: int) -> list[tuple[int, int | None, int | None]]:
    """(user turn, step of one, step of the other) of each row that shows both from step `start` on.

    Steps stand side by side if they are equally far into the same user turn; None if one has no such step.
    """
    turns: dict[int, tuple[list[int], list[int]]] = {}
    for side, record in enumerate((one, other)):
        for at, step in enumerate(record.steps[start:], start=start):
            turns.setdefault(step.turn, ([], []))[side].append(at)
    return [(turn, *pair) for turn in sorted(turns) for pair in zip_longest(*turns[turn])]


def _difference(mine: Step, theirs: Step) -> str:
    if _messages(mine) != _messages(theirs):
        return "they see different messages"
    if _calls(mine) != _calls(theirs):
        return "they call different tools" if _names(mine) != _names(theirs) else "they call with different arguments"
    if mine.action.text != theirs.action.text:
        return "they say different things"
    if [result.content for result in mine.results] != [result.content for result in theirs.results]:
        return "the same calls have different results"
    if [act.calls for act in mine.user_acts] != [act.calls for act in theirs.user_acts]:
        return "their users do different things"
    if mine.world_key != theirs.world_key:
        return "the same calls leave different worlds"
    return ""


def _messages(step: Step) -> list[tuple[str, str]]:
    return [(message.role, message.content) for message in step.observation.messages]


def _names(step: Step) -> list[str]:
    return [call.name for call in step.action.tool_calls]


def _calls(step: Step) -> list[tuple[str, str]]:
    return [(call.name, json.dumps(call.arguments, sort_keys=True, default=dict)) for call in step.action.tool_calls]
