"""Graders of rounds: all parcels have got their tool, and the round was not spoiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gymcp.errors import GraderError
from gymcp.evaluators.graders.matching import calls_with_results
from gymcp.evaluators.graders.states import final_state
from gymcp.mcp_servers.programs.rounds.house import SEALED_PARCEL, TOOLS
from gymcp.mcp_servers.programs.rounds.looks import Looks
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory

LOOK = "look"


def grade_round(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Score 1 if no parcel is left and the round is not spoiled, else 0; component ``parcels``: share that is done.

    Raises GraderError if no state of a round was recorded.
    """
    state = final_state(trajectory, states)
    if not isinstance(state, Mapping) or "spoiled" not in state:
        raise GraderError("no final state of a round was recorded")
    total = task.target["at"]
    is_good = state["at"] == total and state["spoiled"] == task.target["spoiled"]
    ending = "spoiled" if state["spoiled"] else "over" if state["over"] else "not spoiled"
    return Score(
        value=float(is_good),
        components={"parcels": state["at"] / total},
        reason=f"{state['at']} of {total} parcels are done, and the round is {ending}",
    )


def grade_looks(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Score as `grade_round` gives it; components ``needed_looks``, ``needless_looks`` and ``sealed`` (sealed parcels).

    A look is needed if it is the first at a sealed parcel of the round. Calls that failed are not counted.
    """
    score = grade_round(task, trajectory, states)
    needed, needless = count_looks(task, trajectory)
    sealed = sum(call.name == LOOK for turn in task.gold for call in turn.calls)
    looks = {"needed_looks": float(needed), "needless_looks": float(needless), "sealed": float(sealed)}
    return replace(score, components={**score.components, **looks})


def count_looks(task: Task, trajectory: Trajectory) -> tuple[int, int]:
    """(needed looks, needless looks) of an episode, whose calls are made again on a round in this process."""
    world = Looks(**task.initial_state)
    shown = task.prompts[0].rpartition("\n")[2]
    seen: set[int] = set()
    needless = 0
    for _, call, result in calls_with_results(trajectory):
        if result.is_error or call.name not in (*TOOLS, LOOK):
            continue
        if call.name == LOOK and shown == SEALED_PARCEL and world.at not in seen:
            seen.add(world.at)
        elif call.name == LOOK:
            needless += 1
        shown = getattr(world, call.name)()
    return len(seen), needless
