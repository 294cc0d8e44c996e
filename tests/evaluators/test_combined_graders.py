"""Graders made of graders, graders with a ground truth that is looked up, and graders by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trajectories import episode, no_states, text_step, verdict

from gymcp.errors import ConfigError
from gymcp.evaluators.graders import (
    all_of,
    answer_equals,
    answer_has_format,
    answer_is_number,
    any_of,
    dynamic,
    final_state_equals,
    weighted,
)
from gymcp.evaluators.graders.dynamic import GROUND_TRUTHS
from gymcp.evaluators.graders.registry import BY_NAME, make_grader
from gymcp.evaluators.grading import apply_grader
from gymcp.protocols import Grader
from gymcp.types import Json, Outcome, Score, Task

BOTH = all_of({"state": final_state_equals(target_key="state"), "answer": answer_equals(target_key="answer")})
TARGET = {"state": {"n": 1}, "answer": "done"}


@pytest.mark.parametrize(
    ("state", "text", "components"),
    [
        ({"n": 1}, "Done.", {"state": 1.0, "answer": 1.0}),
        ({"n": 2}, "Done.", {"state": 0.0, "answer": 1.0}),
        ({}, "", {"state": 0.0, "answer": 0.0}),
        ("<html>", "\ud800{", {"state": 0.0, "answer": 0.0}),
    ],
)
def test_all_of_gives_the_lowest_score(state: Json, text: str, components: dict[str, float]) -> None:
    score = verdict(BOTH, TARGET, text_step(text), state=state)
    assert (score.value, score.components) == (min(components.values()), components)


def test_all_of_names_the_lowest_first_and_keeps_inner_components() -> None:
    outer = all_of({"both": BOTH})
    assert verdict(outer, TARGET, text_step("no"), state={"n": 1}) == Score(
        value=0.0,
        components={"both": 0.0, "both.state": 1.0, "both.answer": 0.0},
        reason='both: answer: the answer is "no", wanted "done"; state: the final state is the wanted one',
    )


@pytest.mark.parametrize("combine", [all_of, any_of])
def test_a_combination_of_no_graders_is_refused(combine: Callable[[Mapping[str, Grader]], Grader]) -> None:
    with pytest.raises(ConfigError, match="no graders"):
        combine({})


def test_any_and_weighted_say_every_reason() -> None:
    graders = {"text": answer_equals(), "form": answer_has_format("a number")}
    assert verdict(any_of(graders), "8", text_step("7")) == Score(
        value=1.0,
        components={"text": 0.0, "form": 1.0},
        reason='text: the answer is "7", wanted "8"; form: the answer is a number, as wanted',
    )
    assert verdict(weighted(graders, {"text": 3, "form": 1}), "8", text_step("7")).value == 0.25


@given(st.lists(st.floats(0.001, 1000), min_size=1, max_size=6))
def test_a_weighted_score_is_full_only_if_all_scores_are(weights: list[float]) -> None:
    def gives(value: float) -> Grader:
        return lambda task, trajectory, states: Score(value=value)

    names = [str(n) for n in range(len(weights))]
    by_name = dict(zip(names, weights, strict=True))
    assert verdict(weighted(dict.fromkeys(names, gives(1.0)), by_name), None).value == 1.0
    almost = {**dict.fromkeys(names, gives(1.0)), names[0]: gives(1 - 1e-12)}
    assert verdict(weighted(almost, by_name), None).value < 1.0


def test_a_ground_truth_is_looked_up_once_and_kept() -> None:
    asked = []

    def price(task: Task) -> Json:
        asked.append(task.id)
        return 40 + len(asked)

    grader = dynamic("price", price, answer_is_number())
    task = Task(id="a", prompts=())
    first = apply_grader(grader, task, episode(text_step("41")), no_states)
    again = apply_grader(grader, task, first, no_states)
    assert first == again
    assert (first.score, first.provenance[GROUND_TRUTHS], asked) == (1.0, {"price": 41}, ["a"])
    other = apply_grader(dynamic("other", lambda task: 7, answer_is_number()), task, first, no_states)
    assert other.provenance[GROUND_TRUTHS] == {"price": 41, "other": 7}
    forgotten = apply_grader(grader, task, episode(text_step("41")), no_states)
    assert (forgotten.score, forgotten.provenance[GROUND_TRUTHS]) == (0.0, {"price": 42})


def test_a_failed_look_up_is_a_grader_error() -> None:
    def fails(task: Task) -> Json:
        raise TimeoutError("no answer")

    graded = apply_grader(
        dynamic("price", fails, answer_is_number()), Task(id="a", prompts=()), episode(text_step("1")), no_states
    )
    assert (graded.outcome, graded.score) == (Outcome.GRADER_ERROR, None)
    assert "no answer" in graded.reason


def test_graders_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    for name in BY_NAME:
        assert callable(make_grader([name]))
    assert verdict(make_grader(["answer:text"]), {"text": "7"}, text_step("7")).value == 1.0
    file = tmp_path / "mine.py"
    file.write_text(
        "from gymcp.types import Score\n"
        "def GRADE(task, trajectory, states):\n"
        "    return Score(value=0.5, reason='half')\n"
    )
    assert verdict(make_grader([str(file), "answer"]), "7", text_step("7")).components == {
        str(file): 0.5,
        "answer": 1.0,
    }
    file.write_text("x = 1\n")
    with pytest.raises(ConfigError, match="defines no function GRADE"):
        make_grader([str(file)])
    file.write_text("1 / 0\n")
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        make_grader([str(file)])
