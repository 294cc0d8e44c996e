"""A grader whose ground truth is looked up when grading, because it is not known when the task is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gymcp.errors import ConfigError
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

GROUND_TRUTHS = "truths"
"""Key in `Trajectory.provenance` of the ground truths that were looked up, by their names."""


def dynamic(name: str, find_out: Callable[[Task], Json], grader: Grader) -> Grader:
    """Grader: the verdict of `grader` on the task with the value of `find_out` as its target.

    `find_out` is called once for each episode, and the value is kept with the record under `name`, which must be unique
    within a grader. Grading again uses the kept value, unless it was removed (``gymcp grade --refresh``). An exception
    from `find_out` ends in ``grader_error``, and the episode can be graded again. `find_out` must bound its own time.
    """
    if not name:
        raise ConfigError("dynamic: a truth needs a name to be kept under")

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        recorded = trajectory.provenance.get(GROUND_TRUTHS, {})
        truth = recorded[name] if name in recorded else find_out(task)
        score = grader(replace(task, target=truth), trajectory, states)
        return replace(score, ground_truths={**score.ground_truths, name: truth})

    return grade
