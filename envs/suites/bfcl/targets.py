"""Targets of BFCL's tasks: computed once, at install, by replaying the gold on upstream's classes."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from gymcp.errors import UsageError
from gymcp.evaluators.graders.bfcl import PlayedTurn, judge, make_target
from gymcp.types import Json

Replay = Callable[[str], str]
"""A function that runs the server's program with ``--replay`` on a standard input, and returns its output."""

Position = tuple[int, int]
"""(user turn, call)."""


def compute_targets(tasks: Sequence[Json], replay: Replay) -> dict[str, Json]:
    """Task id -> {"target", "last_necessary"}.

    Each round replays every open task without one call, from the last towards the first; a round is one process.
    """
    targets = {
        task["id"]: make_target([turn if calls else None for turn, calls in zip(played, task["gold"], strict=True)])
        for task, played in zip(tasks, replay_turns([(task, task["gold"]) for task in tasks], replay), strict=True)
    }
    necessary: dict[str, Position | None] = dict.fromkeys(targets)
    candidates = {task["id"]: _positions(task["gold"]) for task in tasks}
    open_tasks = list(tasks)
    while open_tasks := [task for task in open_tasks if candidates[task["id"]] and necessary[task["id"]] is None]:
        tried = [(task, candidates[task["id"]].pop()) for task in open_tasks]
        shorter = [(task, _without(task["gold"], position)) for task, position in tried]
        for (task, position), played in zip(tried, replay_turns(shorter, replay), strict=True):
            if judge(targets[task["id"]], played).value < 1:
                necessary[task["id"]] = position
    return {name: {"target": target, "last_necessary": necessary[name]} for name, target in targets.items()}


def replay_turns(played: Sequence[tuple[Json, Json]], replay: Replay) -> list[list[PlayedTurn]]:
    """The turns of each (task, calls per turn), in order. Raises UsageError if the replay breaks off."""
    lines = [json.dumps({"id": task["id"], "setup": task["setup"], "turns": turns}) + "\n" for task, turns in played]
    records = [json.loads(line) for line in replay("".join(lines)).splitlines()]
    if [record["id"] for record in records] != [task["id"] for task, _ in played]:
        raise UsageError(f"bfcl: replay ended after {len(records)} of {len(played)} tasks; see its error output")
    return [
        [
            PlayedTurn(acted=bool(calls), responses=tuple(responses), state=record["distinct"][state]["public"])
            for calls, responses, state in zip(turns, record["responses"], record["states"], strict=True)
        ]
        for (_, turns), record in zip(played, records, strict=True)
    ]


def _positions(gold: Json) -> list[Position]:
    return [(turn, call) for turn, calls in enumerate(gold) for call in range(len(calls))]


def _without(gold: Json, position: Position) -> Json:
    turn, call = position
    return [calls[:call] + calls[call + 1 :] if index == turn else calls for index, calls in enumerate(gold)]
