"""The grader of the shelf: the servers that a task is about must have changed as it asks, and no other server."""

from __future__ import annotations

from gymcp.errors import GraderError
from gymcp.evaluators.graders.files import texts_of
from gymcp.evaluators.graders.states import final_state
from gymcp.evaluators.json_diff import first_difference
from gymcp.mcp_servers.programs.shelf.server import services
from gymcp.protocols import StateReader
from gymcp.types import Score, Task, Trajectory


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """1 if the changed records and the files of the filesystem server are the target's, and nothing else has changed.

    A recorded state holds only the servers that have changed.
    """
    state = final_state(trajectory, states)
    if not isinstance(state, dict) or not isinstance(task.target, dict):
        raise GraderError(f"task '{task.id}': no state by server was recorded, or its target is none")
    records = {name: part for name, part in state.items() if name in services() and part}
    others = sorted(state.keys() - services().keys() - {"filesystem"})
    difference = first_difference(records, task.target["records"])
    if difference is None and "filesystem" in state:
        target = task.target["files"]
        difference = first_difference(texts_of(state["filesystem"]), target) if target is not None else "files changed"
    elif difference is None and task.target["files"] is not None:
        difference = "no file was written"
    if difference is None and others:
        difference = f"{others[0]} has changed, which nobody asked for"
    return Score(value=float(difference is None), reason=difference or "all is as wanted")
