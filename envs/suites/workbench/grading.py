"""Is the world of every server, and of no other, as it should be?"""

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
    """1 where the last recorded files are the target's, but for line ends at the end of a text."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        found = {path: _ended(text) for path, text in final_files(trajectory, states).items()}
        wanted = {path: _ended(text) for path, text in target_of(task, target_key).items()}
        difference = first_difference(found, wanted)
        return Score(value=float(difference is None), reason=difference or "every file is as wanted")

    return grade


def _ended(text: Json) -> Json:
    return text.rstrip("\n") if isinstance(text, str) else text


def changes_equal(*, target_key: str | None = None) -> Grader:
    """1 where what has changed in the tables is the target; of new rows it does not matter which came first."""

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        initial = task.initial_state
        found = _unordered(final_state(trajectory, states)["changes"], initial)
        difference = first_difference(found, _unordered(target_of(task, target_key)["changes"], initial))
        return Score(value=float(difference is None), reason=difference or "every row is as wanted")

    return grade


def _unordered(changes: Mapping[str, Json], tables: Mapping[str, Mapping[str, Json]]) -> dict[str, Json]:
    """Changed rows by table and id; new ones as a list without ids."""
    found: dict[str, Json] = {"new": []}
    for name, row in changes.items():
        table, _, key = name.partition("/")
        if key in tables[table]:
            found[name] = row
        else:
            found["new"].append([table, {column: value for column, value in row.items() if column != "id"}])
    found["new"].sort(key=lambda row: json.dumps(row, sort_keys=True))
    return found


_GRADERS: Mapping[str, Grader] = {
    "filesystem": of_server("filesystem", texts_equal(target_key="filesystem")),
    "memory": of_server("memory", graph_equals(target_key="memory")),
    "git": of_server("git", repository_equals(target_key="git")),
    "calendar": of_server("calendar", changes_equal(target_key="calendar")),
    "desk": of_server("desk", changes_equal(target_key="desk")),
}
_ANSWER = answer_equals(target_key="answer")


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """1 where every server that the task has ends as it should: what was asked is done, and nothing else.

    An answer must be right, too, where one is asked for. Components: by server, 1 where its world is right; ``answer``.
    """
    wanted = target_of(task, "servers")
    scores = {}
    for server in wanted:
        part = replace(task, target=wanted, initial_state=task.initial_state[server])
        scores[server] = _GRADERS[server](part, trajectory, states)
    if "answer" in task.target:
        scores["answer"] = _ANSWER(task, trajectory, states)
    wrong = [f"{name}: {score.reason}" for name, score in scores.items() if score.value < 1]
    return Score(
        value=float(not wrong),
        components={name: score.value for name, score in scores.items()},
        reason="; ".join(wrong) or "every server is as wanted",
    )
