"""Grader of the workbench: every server of a task must end in its target state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

from gymcp.envs.suites.generation.git_objects import repository_equals
from gymcp.envs.suites.generation.memory_graph import graph_equals
from gymcp.evaluators.graders import answer_equals, final_files, of_server
from gymcp.evaluators.graders.states import final_state
from gymcp.evaluators.graders.target import target_of
from gymcp.evaluators.json_diff import first_difference
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory


def texts_equal(*, target_key: str | None = None) -> Grader:
    """A grader that gives 1 if the last recorded files are the target's, but for line ends at the end of a text."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        final = {path: _strip_line_ends(text) for path, text in final_files(trajectory, states).items()}
        target = {path: _strip_line_ends(text) for path, text in target_of(task, target_key).items()}
        difference = first_difference(final, target)
        return Score(value=float(difference is None), reason=difference or "every file is as wanted")

    return grade


def _strip_line_ends(text: Json) -> Json:
    return text.rstrip("\n") if isinstance(text, str) else text


def changes_equal(*, target_key: str | None = None) -> Grader:
    """A grader that gives 1 if the changes of the tables are the target's, in any order of new rows."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        initial = task.initial_state
        changes = _sort_new_rows(final_state(trajectory, states)["changes"], initial)
        difference = first_difference(changes, _sort_new_rows(target_of(task, target_key)["changes"], initial))
        return Score(value=float(difference is None), reason=difference or "every row is as wanted")

    return grade


def _sort_new_rows(changes: Mapping[str, Json], tables: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Changed rows by table and id; new rows as a sorted list without ids."""
    rows: dict[str, Json] = {"new": []}
    for name, row in changes.items():
        table, _, key = name.partition("/")
        if key in tables[table]:
            rows[name] = row
        else:
            rows["new"].append([table, {column: value for column, value in row.items() if column != "id"}])
    rows["new"].sort(key=lambda row: json.dumps(row, sort_keys=True))
    return rows


_GRADERS: Mapping[str, Grader] = {
    "filesystem": of_server("filesystem", texts_equal(target_key="filesystem")),
    "memory": of_server("memory", graph_equals(target_key="memory")),
    "git": of_server("git", repository_equals(target_key="git")),
    "calendar": of_server("calendar", changes_equal(target_key="calendar")),
    "desk": of_server("desk", changes_equal(target_key="desk")),
}
_ANSWER = answer_equals(target_key="answer")


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """1 if every server of the task ends in its target state: what was asked is done, and nothing else.

    If the task asks for an answer, it must be right, too. Components: 1 or 0 for each server, and for ``answer``.
    """
    targets = target_of(task, "servers")
    scores = {}
    for server in targets:
        part = replace(task, target=targets, initial_state=task.initial_state[server])
        scores[server] = _GRADERS[server](part, trajectory, states)
    if "answer" in task.target:
        scores["answer"] = _ANSWER(task, trajectory, states)
    wrong = [f"{name}: {score.reason}" for name, score in scores.items() if score.value < 1]
    return Score(
        value=float(not wrong),
        components={name: score.value for name, score in scores.items()},
        reason="; ".join(wrong) or "every server is as wanted",
    )
