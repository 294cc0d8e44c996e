"""A grader whose truth is not known when a task is written, such as today's price: found out when grading."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gymcp.errors import ConfigError
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

TRUTHS = "truths"
"""Key of `Trajectory.provenance` that keeps what was found out, by the name of who did."""


def dynamic(name: str, find_out: Callable[[Task], Json], grader: Grader) -> Grader:
    """The verdict of `grader` on the task with what `find_out` gives as its target.

    It is asked once for each episode and kept with the record under `name`, which is unique within a grader: grading
    again uses what was kept, and asks again only where it was taken away (``gymcp grade --refresh``). What `find_out`
    raises ends in ``grader_error``, to be graded again. It must bound its own time.
    """
    if not name:
        raise ConfigError("dynamic: a truth needs a name to be kept under")

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        kept = trajectory.provenance.get(TRUTHS, {})
        truth = kept[name] if name in kept else find_out(task)
        score = grader(replace(task, target=truth), trajectory, states)
        return replace(score, ground_truths={**score.ground_truths, name: truth})

    return grade
