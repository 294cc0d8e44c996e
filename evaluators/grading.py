"""The one place where a grader's verdict becomes an outcome and a score."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from gymcp.errors import GraderError
from gymcp.evaluators.graders.dynamic import TRUTHS
from gymcp.protocols import Grader, StateReader
from gymcp.types import Outcome, Score, Task, Trajectory

ENDED = "ended"
"""Key of `Trajectory.provenance` that keeps how an episode ended where the outcome says ``grader_error`` instead."""


def apply_grader(grader: Grader, task: Task, trajectory: Trajectory, states: StateReader) -> Trajectory:
    """The trajectory with the grader's verdict on it; of an earlier verdict nothing remains.

    * infrastructure failed, or cancelled: no score, and the grader is not asked;
    * ``agent_error``: 0, and the grader is not asked;
    * a grader that raises, or whose numbers are not numbers: ``grader_error`` and no score;
    * else the score, and the outcome stays what ended the episode (``scored`` or ``budget_exhausted``).
    """
    if trajectory.outcome.is_infra or trajectory.outcome is Outcome.CANCELLED:
        return replace(trajectory, score=None, components={})
    if trajectory.outcome is Outcome.AGENT_ERROR:
        return replace(trajectory, score=0.0, components={})
    ungraded = _ungraded(trajectory)
    try:
        verdict = _checked(grader(task, ungraded, states))
    except Exception as error:  # the boundary to code that anybody may write
        return replace(
            ungraded,
            outcome=Outcome.GRADER_ERROR,
            reason=f"grader raised {type(error).__name__}: {error}",
            provenance={**ungraded.provenance, ENDED: str(ungraded.outcome)},
        )
    provenance = ungraded.provenance
    if verdict.ground_truths:  # those of another grader stay
        provenance = {**provenance, TRUTHS: {**provenance.get(TRUTHS, {}), **verdict.ground_truths}}
    return replace(
        ungraded,
        score=float(verdict.value),
        components=dict(verdict.components),
        reason=verdict.reason,
        provenance=provenance,
    )


def _ungraded(trajectory: Trajectory) -> Trajectory:
    """As the episode ended: a grader sees no earlier verdict, so grading again gives the same."""
    outcome, provenance = trajectory.outcome, trajectory.provenance
    if outcome is Outcome.GRADER_ERROR:
        outcome = Outcome(provenance.get(ENDED, Outcome.SCORED))
        provenance = {key: value for key, value in provenance.items() if key != ENDED}
    return replace(trajectory, outcome=outcome, score=None, components={}, reason="", provenance=provenance)


def _checked(verdict: object) -> Score:
    """The verdict, where it is one. Raises GraderError."""
    if not isinstance(verdict, Score):
        raise GraderError(f"gave {type(verdict).__name__}, not a Score")
    if not _is_number(verdict.value) or not 0 <= verdict.value <= 1:
        raise GraderError(f"the score is {verdict.value!r}, not a number in [0, 1]")
    if not isinstance(verdict.components, Mapping):
        raise GraderError(f"components are {type(verdict.components).__name__}, not a mapping")
    for name, value in verdict.components.items():
        if not _is_number(value):
            raise GraderError(f"component {name!r} is {value!r}, not a finite number")
    return verdict


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
