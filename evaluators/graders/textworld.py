"""A grader of TextWorld: won or not, as the game itself says."""

from __future__ import annotations

from collections.abc import Mapping

from gymcp.errors import GraderError
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory


def game_won(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """Score 1 if the last state is won, else 0; component ``milestones``: the share of the game's points.

    Raises GraderError if no state of a game was recorded.
    """
    state = states(trajectory.final_state) if trajectory.final_state is not None else None
    if not isinstance(state, Mapping) or "won" not in state:
        raise GraderError("no final state of a game was recorded")
    share = state["score"] / task.target["score"]
    ending = "won" if state["won"] else "lost" if state["lost"] else "not over"
    return Score(
        value=float(state["won"]),
        components={"milestones": share},
        reason=f"the game is {ending}, with {state['score']} of {task.target['score']} points",
    )
