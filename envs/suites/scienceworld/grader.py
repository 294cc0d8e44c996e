"""A grader of ScienceWorld: solved or not, and the share of the goals that was reached."""

from __future__ import annotations

from collections.abc import Mapping

from gymcp.errors import GraderError
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory


def task_solved(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Score 1 if the simulator's own score is full, else 0; component ``progress``: that score, 0 if it is negative.

    Raises GraderError if no state of a world was recorded.
    """
    state = states(trajectory.final_state) if trajectory.final_state is not None else None
    if not isinstance(state, Mapping) or "score" not in state:
        raise GraderError("no final state of a world was recorded")
    score, full = state["score"], task.target["score"]
    ending = "done" if score == full else "failed" if state["over"] else "not over"
    return Score(
        value=float(score == full),
        components={"progress": max(score, 0) / full},
        reason=f"the task is {ending}, with {score} of {full} points",
    )
