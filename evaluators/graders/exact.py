"""Graders for tasks with one right end: the state of the world, the last words, or both."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping

from gymcp.errors import ConfigError, GraderError
from gymcp.evaluators.graders.difference import first_difference, shown
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory


def final_state_equals(*, target_key: str | None = None) -> Grader:
    """1 where the last state equals the task's target (or what the target has under `target_key`), else 0.

    Raises GraderError, when grading, where no state was recorded or the target lacks the key: that says nothing about
    the agent.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        wanted = _target(task, target_key)
        if trajectory.final_state is None:
            raise GraderError("no final state was recorded: the servers declare none")
        difference = first_difference(states(trajectory.final_state), wanted)
        if difference is None:
            return Score(value=1.0, reason="the final state is the wanted one")
        return Score(value=0.0, reason=f"in the final state {difference}")

    return grade


def answer_equals(*, target_key: str | None = None, exact: bool = False) -> Grader:
    """1 where the last thing said equals the task's target (or what it has under `target_key`), else 0.

    The target is a text, or a list of texts of which any will do. Unless `exact`, texts are compared by `normalised`.
    Raises GraderError, when grading, where the target is none of these.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        wanted = _texts(_target(task, target_key))
        said = last_words(trajectory)
        if said is None:
            return Score(value=0.0, reason="the agent never spoke")
        same = (lambda text: text) if exact else normalised
        if same(said) in {same(text) for text in wanted}:
            return Score(value=1.0, reason=f"the answer is {shown(said)}, as wanted")
        return Score(value=0.0, reason=f"the answer is {shown(said)}, wanted {' or '.join(map(shown, wanted))}")

    return grade


def all_of(graders: Mapping[str, Grader]) -> Grader:
    """The least of the graders' scores: 1 where all give 1. Each score is a component, by the name given here."""
    if not graders:
        raise ConfigError("all_of: no graders")

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        scores = {name: grader(task, trajectory, states) for name, grader in graders.items()}
        components = {name: score.value for name, score in scores.items()}
        for name, score in scores.items():
            components |= {f"{name}.{part}": value for part, value in score.components.items()}
        return Score(
            value=min(score.value for score in scores.values()),
            components=components,
            reason="; ".join(f"{name}: {score.reason}" for name, score in scores.items()),
        )

    return grade


def last_words(trajectory: Trajectory) -> str | None:
    """What the agent said when it last spoke without calling a tool; None where it never did."""
    for step in reversed(trajectory.steps):
        if step.valid and not step.action.tool_calls:
            return step.action.text
    return None


def normalised(text: str) -> str:
    """Without what does not change an answer: case, width, runs of white space, quotes around it, stops after it."""
    folded = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    return folded.lstrip("\"'` ").rstrip("\"'`. ")


def _target(task: Task, key: str | None) -> Json:
    if key is None:
        return task.target
    if not isinstance(task.target, Mapping) or key not in task.target:
        raise GraderError(f"task {task.id!r}: the target has no {key!r}")
    return task.target[key]


def _texts(target: Json) -> tuple[str, ...]:
    texts = (target,) if isinstance(target, str) else target
    if not isinstance(texts, list | tuple) or not texts or not all(isinstance(text, str) for text in texts):
        raise GraderError(f"the target is {shown(target)}, not a text or a list of texts")
    # an empty answer would be right for a target of which normalising leaves nothing
    if not all(normalised(text) for text in texts):
        raise GraderError("the target has an empty text")
    return tuple(texts)
