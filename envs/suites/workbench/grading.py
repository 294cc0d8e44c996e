"""Is the world of every server, and of no other, as it should be?"""

from __future__ import annotations

from collections.abc import Mapping

from gymcp.envs.suites.commits import repository_equals
from gymcp.envs.suites.graphs import graph_equals
from gymcp.evaluators.graders import final_files, final_state_equals, of_server
from gymcp.evaluators.graders.difference import first_difference
from gymcp.evaluators.graders.target import target_of
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


_GRADERS: Mapping[str, Grader] = {
    "filesystem": of_server("filesystem", texts_equal(target_key="filesystem")),
    "memory": of_server("memory", graph_equals(target_key="memory")),
    "git": of_server("git", repository_equals(target_key="git")),
    "calendar": of_server("calendar", final_state_equals(target_key="calendar")),
    "desk": of_server("desk", final_state_equals(target_key="desk")),
}


def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    """1 where every server that the task has ends as it should: what was asked is done, and nothing else.

    Components: by server, 1 where its world is right.
    """
    wanted = target_of(task, "servers")
    inner = Task(id=task.id, prompts=task.prompts, target=wanted)
    scores = {server: _GRADERS[server](inner, trajectory, states) for server in wanted}
    wrong = [f"{server}: {score.reason}" for server, score in scores.items() if score.value < 1]
    return Score(
        value=float(not wrong),
        components={server: score.value for server, score in scores.items()},
        reason="; ".join(wrong) or "every server is as wanted",
    )
