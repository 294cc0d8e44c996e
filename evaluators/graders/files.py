"""A grader for worlds of files: compares every file with the expected one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from gymcp.errors import GraderError
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory


def final_files_equal(*, target_key: str | None = None) -> Grader:
    """Grader: 1 if the last recorded files are the task's target (or its entry `target_key`), else 0.

    The target maps paths to texts, as ``initial_state["files"]`` does, and to None for an empty folder; folders with
    content are implied, and modes do not count. Grading raises GraderError if no files were recorded or the target is
    no such mapping.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        expected = target_of(task, target_key)
        if not isinstance(expected, Mapping):
            raise GraderError(f"task '{task.id}': the target is not a mapping of files")
        difference = first_difference(final_files(trajectory, states), dict(expected))
        if difference is None:
            return Score(value=1.0, reason="every file is as wanted")
        return Score(value=0.0, reason=f"at the end {difference}")

    return grade


def final_files(trajectory: Trajectory, states: StateReader) -> dict[str, Json]:
    """The last recorded files by path: text, None for an empty folder, or the record of a file that is no text.

    Raises GraderError if none were recorded.
    """
    state = states(trajectory.final_state) if trajectory.final_state is not None else None
    return texts_of(state)


def texts_of(state: Json) -> dict[str, Json]:
    """Files in one server's recorded state, in the form of `final_files`. Raises GraderError if it has none."""
    if not isinstance(state, Mapping) or not isinstance(state.get("files"), Mapping):
        raise GraderError("no files were recorded: the server's state is not read from files")
    entries: Mapping[str, Mapping[str, Json]] = state["files"]
    parents = {str(parent) for path in entries for parent in PurePosixPath(path).parents}
    texts: dict[str, Json] = {}
    for path, entry in entries.items():
        if entry["type"] == "folder":
            if path not in parents:
                texts[path] = None
        elif "text" in entry:
            texts[path] = entry["text"]
        else:
            texts[path] = {name: value for name, value in entry.items() if name != "mode"}
    return texts
