from __future__ import annotations

from dataclasses import replace

import pytest

from gymcp.evaluators.grading import apply_grader
from gymcp.outcome import Outcome
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory

TASK = Task(id="a", prompts=("go",))
PLAYED = Trajectory(id="1", env="shop", task="a", final_state="s")


def read_state(ref: str) -> Json:
    return {"s": {"n": 1}}[ref]


def gives(score: Json) -> Grader:
    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        return score  # type: ignore[no-any-return]

    return grade


def refuses(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
    raise AssertionError("asked")


@pytest.mark.parametrize("outcome", [Outcome.SCORED, Outcome.BUDGET_EXHAUSTED])
def test_a_verdict_becomes_the_score_and_the_outcome_stays(outcome: Outcome) -> None:
    verdict = Score(value=0.5, components={"did": 3}, reason="half of it")
    assert apply_grader(gives(verdict), TASK, replace(PLAYED, outcome=outcome), read_state) == replace(
        PLAYED, outcome=outcome, score=0.5, components={"did": 3}, reason="half of it"
    )


@pytest.mark.parametrize("outcome", [o for o in Outcome if o.is_infra or o is Outcome.CANCELLED])
def test_a_failed_harness_has_no_score_and_keeps_its_reason(outcome: Outcome) -> None:
    lost = replace(PLAYED, outcome=outcome, reason="server died")
    assert apply_grader(refuses, TASK, lost, read_state) == lost
    assert apply_grader(refuses, TASK, replace(lost, score=1.0), read_state) == lost


def test_an_agent_error_is_zero_and_keeps_its_reason() -> None:
    failed = replace(PLAYED, outcome=Outcome.AGENT_ERROR, reason="no usable output")
    assert apply_grader(refuses, TASK, failed, read_state) == replace(failed, score=0.0)


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (Score(value=float("nan")), "the score is nan, not a number in [0, 1]"),
        (Score(value=1.01), "the score is 1.01, not a number in [0, 1]"),
        (Score(value=-0.5), "the score is -0.5, not a number in [0, 1]"),
        (gives(Score(value="1"))(TASK, PLAYED, read_state), "the score is '1', not a number in [0, 1]"),  # type: ignore[arg-type]
        (Score(value=1.0, components={"x": float("inf")}), "component 'x' is inf, not a finite number"),
        (Score(value=1.0, components=[1]), "components are list, not a mapping"),  # type: ignore[arg-type]
        (None, "gave NoneType, not a Score"),
        (1.0, "gave float, not a Score"),
    ],
)
def test_an_invalid_score_is_a_grader_error(verdict: Json, why: str) -> None:
    graded = apply_grader(gives(verdict), TASK, PLAYED, read_state)
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
    place, _, reason = graded.reason.removeprefix("grader raised ").partition(": ")
    assert (place.partition(":")[0], reason) == ("test_grading.py", f"GraderError: {why}")


def test_a_grader_that_raises_costs_the_score_and_not_the_run() -> None:
    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        return Score(value=states("missing"))

    graded = apply_grader(grade, TASK, replace(PLAYED, score=1.0), read_state)
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
    place, _, reason = graded.reason.removeprefix("grader raised ").partition(": ")
    assert (place.partition(":")[0], reason) == ("test_grading.py", "KeyError: 'missing'")


def test_grading_again_after_a_grader_error_restores_how_the_episode_ended() -> None:
    ended = replace(PLAYED, outcome=Outcome.BUDGET_EXHAUSTED, provenance={"git": "abc"})
    broken = apply_grader(gives(None), TASK, ended, read_state)
    mended = apply_grader(gives(Score(value=1.0)), TASK, broken, read_state)
    assert mended == replace(ended, score=1.0)


def test_a_grader_sees_no_earlier_verdict() -> None:
    seen = []

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        seen.append(trajectory)
        return Score(value=1.0, reason="good")

    once = apply_grader(grade, TASK, PLAYED, read_state)
    assert apply_grader(grade, TASK, replace(once, score=0.0, components={"x": 1.0}), read_state) == once
    assert seen == [PLAYED, PLAYED]


def test_interrupting_is_not_a_grader_error() -> None:
    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        apply_grader(grade, TASK, PLAYED, read_state)
