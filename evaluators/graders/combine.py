"""Graders that combine other graders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from gymcp.errors import ConfigError, GraderError
from gymcp.protocols import Grader, StateReader
from gymcp.types import Json, Score, Task, Trajectory


def of_server(name: str, grader: Grader) -> Grader:
    """Grader of one server's state, for an environment with several servers.

    Grading raises GraderError if no state of that server was recorded.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        def part(ref: str) -> Json:
            whole = states(ref)
            if not isinstance(whole, Mapping) or name not in whole:
                raise GraderError(f"no state of server '{name}' was recorded")
            return whole[name]

        return grader(task, trajectory, part)

    return grade


def all_of(graders: Mapping[str, Grader]) -> Grader:
    """Grader: the lowest of the graders' scores, so 1 if all give 1. Each score is a component, by the name given
    here."""
    _check("all_of", graders)

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        scores = _scores(graders, task, trajectory, states)
        return _combine(min(score.value for score in scores.values()), scores)

    return grade


def with_component(name: str, grader: Grader, other: Grader) -> Grader:
    """Grader: the grader's verdict, with the score of another grader as a further component of that name.

    Grading raises ConfigError if the verdict has a component of that name already.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        score = grader(task, trajectory, states)
        if name in score.components:
            raise ConfigError(
                f"the verdict has a component '{name}' already, so another grader's score cannot have this name: rename"
                " the component"
            )
        more = other(task, trajectory, states)
        truths = {**score.ground_truths, **more.ground_truths}
        return replace(score, components={**score.components, name: more.value}, ground_truths=truths)

    return grade


def any_of(graders: Mapping[str, Grader]) -> Grader:
    """Grader: the highest of the graders' scores, so 1 if any gives 1. Each score is a component, by the name given
    here."""
    _check("any_of", graders)

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        scores = _scores(graders, task, trajectory, states)
        return _combine(max(score.value for score in scores.values()), scores)

    return grade


def weighted(graders: Mapping[str, Grader], weights: Mapping[str, float]) -> Grader:
    """Grader: the weighted mean of the graders' scores, so 1 if all give 1. Each score is a component.

    Raises ConfigError if a grader has no weight, a weight has no grader, or a weight is not a number above 0.
    """
    _check("weighted", graders)
    if unpaired := sorted(graders.keys() ^ weights.keys()):
        raise ConfigError(f"weighted: '{unpaired[0]}' has no {'weight' if unpaired[0] in graders else 'grader'}")
    for name, weight in weights.items():
        if not (math.isfinite(weight) and weight > 0):
            raise ConfigError(f"weighted: the weight of '{name}' is {weight}, not a number above 0")
    whole = math.fsum(weights.values())

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        scores = _scores(graders, task, trajectory, states)
        value = math.fsum(weights[name] * score.value for name, score in scores.items()) / whole
        # rounding must make neither a success nor a failure
        value = 1.0 if all(score.value == 1 for score in scores.values()) else min(value, math.nextafter(1.0, 0.0))
        return _combine(value, scores)

    return grade


def _check(who: str, graders: Mapping[str, Grader]) -> None:
    if not graders:
        raise ConfigError(f"{who}: no graders")


def _scores(graders: Mapping[str, Grader], task: Task, trajectory: Trajectory, states: StateReader) -> dict[str, Score]:
    return {name: grader(task, trajectory, states) for name, grader in graders.items()}


def _combine(value: float, scores: Mapping[str, Score]) -> Score:
    components = {name: score.value for name, score in scores.items()}
    ground_truths: dict[str, Json] = {}
    for name, score in scores.items():
        components |= {f"{name}.{part}": value for part, value in score.components.items()}
        ground_truths |= score.ground_truths
    # lowest first: a line that is cut still says what was wrong
    lowest_first = sorted(scores.items(), key=lambda each: each[1].value)
    reason = "; ".join(f"{name}: {score.reason}" for name, score in lowest_first)
    return Score(value=value, components=components, reason=reason, ground_truths=ground_truths)
