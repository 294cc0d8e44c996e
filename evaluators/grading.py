"""The one place that turns a grader's verdict into an outcome and a score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gymcp.errors import GraderError
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.outcome import Outcome
from gymcp.protocols import Grader, StateReader
from gymcp.types import Score, Task, Trajectory
from gymcp.user_code import is_finite_number, locate_error, locate_function

ENDED_KEY = "ended"
"""Key in `Trajectory.provenance` of the outcome that ended an episode whose outcome is now ``grader_error``."""


MAX_REASON_CHARS = 1_000
"""Characters of the reason why a grader failed that are recorded."""


def apply_grader(grader: Grader, task: Task, trajectory: Trajectory, states: StateReader) -> Trajectory:
    """The trajectory with the grader's verdict in place of any earlier one.

    * If the infrastructure failed or the episode was cancelled: no score, and the grader is not called.
    * ``agent_error``: 0, and the grader is not called.
    * If the grader raises, or gives values that are not finite numbers: ``grader_error`` and no score.
    * Else the score; the outcome stays the one that ended the episode (``scored`` or ``budget_exhausted``).
    """
    if trajectory.outcome.is_infra or trajectory.outcome is Outcome.CANCELLED:
        return replace(trajectory, score=None, components={})
    if trajectory.outcome is Outcome.AGENT_ERROR:
        return replace(trajectory, score=0.0, components={})
    ungraded = remove_grade(trajectory)
    try:
        verdict = _check_score(grader(task, ungraded, states))
    except Exception as error:  # the boundary to user code
        return replace(
            ungraded,
            outcome=Outcome.GRADER_ERROR,
            reason=_describe_failure(error, grader),
            provenance={**ungraded.provenance, ENDED_KEY: str(ungraded.outcome)},
        )
    provenance = ungraded.provenance
    if verdict.ground_truths:  # keep the ground truths of other graders
        provenance = {**provenance, GROUND_TRUTHS: {**provenance.get(GROUND_TRUTHS, {}), **verdict.ground_truths}}
    return replace(
        ungraded,
        score=float(verdict.value),
        components=dict(verdict.components),
        reason=verdict.reason,
        provenance=provenance,
    )


def _describe_failure(error: Exception, grader: Grader) -> str:
    """The error in words, after the file and the line of the user's own code if the grader is the user's."""
    place = locate_error(error) or locate_function(grader)
    text = f"grader raised {f'{place}: ' if place else ''}{type(error).__name__}: {error}"
    return " ".join(text.split())[:MAX_REASON_CHARS]


def remove_grade(trajectory: Trajectory) -> Trajectory:
    """The trajectory as the episode ended: a grader sees no earlier verdict, so grading again gives the same score."""
    outcome, provenance = trajectory.outcome, trajectory.provenance
    if outcome is Outcome.GRADER_ERROR:
        outcome = Outcome(provenance.get(ENDED_KEY, Outcome.SCORED))
        provenance = {key: value for key, value in provenance.items() if key != ENDED_KEY}
    return replace(trajectory, outcome=outcome, score=None, components={}, reason="", provenance=provenance)


def _check_score(verdict: object) -> Score:
    """The verdict, if it is a valid score. Raises GraderError if it is not."""
    if not isinstance(verdict, Score):
        raise GraderError(f"gave {type(verdict).__name__}, not a Score")
    if not is_finite_number(verdict.value) or not 0 <= verdict.value <= 1:
        raise GraderError(f"the score is {verdict.value!r}, not a number in [0, 1]")
    if not isinstance(verdict.components, Mapping):
        raise GraderError(f"components are {type(verdict.components).__name__}, not a mapping")
    for name, value in verdict.components.items():
        if not is_finite_number(value):
            raise GraderError(f"component {name!r} is {value!r}, not a finite number")
    return verdict
