"""Questions to a controller, which may be of the user: it may raise, give anything, or never answer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from numbers import Integral
from typing import TypeVar

from gymcp.agents.runner.trees.controller import Branch, Choice, Controller, LooksBack, Played, Start, TreeBudget
from gymcp.agents.strategies.interruptible import LoopHeldUp, run_interruptible
from gymcp.errors import ConfigError, EnvInfraError, GymcpError
from gymcp.types import Action, Decision, Task
from gymcp.user_code import describe_error, describe_kind

T = TypeVar("T")

ANSWER_S = 10.0
"""Seconds that a controller may take for an answer; all episodes stand still as long."""
MAX_PLANNED = 1_000_000
"""Episodes that a controller may plan, and entries of its plan."""


def plan_trees(controller: Controller, tasks: Sequence[Task], budget: TreeBudget) -> dict[str, int]:
    """Task id -> number of trees.

    Raises ConfigError for a plan that names other tasks, plays nothing or has no end, and for a controller that fails.
    """
    who = name_controller(controller)

    def ask() -> list[Start]:
        return list(itertools.islice(controller.plan(tasks, budget), MAX_PLANNED + 1))

    planned = {task.id: 0 for task in tasks}
    for start in _ask(ask, who, "when it planned", ConfigError):
        if not isinstance(start, Start) or not isinstance(start.trees, int):
            raise ConfigError(f"{who}: planned {describe_kind(start)}, not a gymcp.agents.Start")
        if start.task not in planned:
            raise ConfigError(f"{who}: plans task '{start.task}', which the run lacks")
        planned[start.task] += max(0, start.trees)
    if sum(planned.values()) > MAX_PLANNED:
        raise ConfigError(f"{who}: plans more than {MAX_PLANNED:,} episodes")
    if tasks and not any(planned.values()):
        raise ConfigError(f"{who}: plans no episode of the run's {len(tasks)} tasks")
    return planned


def ask_choice(controller: Controller, played: Played, *, is_end: bool) -> Choice:
    """The controller's choice after a step; with `is_end`, after the step that ended the episode.

    Raises EnvInfraError if it raises, does not answer in time, or gives something that is no choice, or a choice with
    values of other types.
    """
    who, when = name_controller(controller), f"after step {played.number}"
    ask = controller.at_end if is_end and isinstance(controller, LooksBack) else controller.after
    choice: object = _ask(lambda: ask(played), who, when, EnvInfraError)
    if inspect.iscoroutine(choice):
        choice.close()
        raise EnvInfraError(f"{who}: gave a coroutine {when}; make the method a plain function")
    if not isinstance(choice, Choice):
        raise EnvInfraError(f"{who}: gave {describe_kind(choice)} {when}, not a choice")
    if (wrong := _find_wrong_value(choice)) is not None:
        raise EnvInfraError(f"{who}: gave {type(choice).__name__} {when} with {wrong}")
    return choice


_TYPES: Mapping[str, tuple[tuple[type, ...], str]] = {
    "ways": ((Integral,), "a whole number"),
    "before": ((bool,), "True or False"),
    "keep_answer": ((bool,), "True or False"),
    "reason": ((str,), "a text"),
    "stop": ((str,), "a text"),
    "decision": ((Decision, Action), "a gymcp.types.Action or Decision"),
}
"""Field of a choice -> types that it may have, and their name."""


def _find_wrong_value(choice: Choice) -> str | None:
    """The first value of the choice that it cannot have, in words; None if there is none."""
    for field in fields(choice):
        types, name = _TYPES[field.name]
        value: object = getattr(choice, field.name)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            return f"{field.name} = {describe_kind(value)}; it must be {name}"
    if isinstance(choice, Branch) and choice.ways < 1:
        return f"ways = {choice.ways}; 1 is to go on"
    return None


def name_controller(controller: object) -> str:
    return f"controller {type(controller).__name__}"


def _ask(ask: Callable[[], T], who: str, when: str, failure: type[GymcpError]) -> T:
    """The answer. Raises `failure`, which names the controller. Only the main thread can be interrupted."""
    try:
        return run_interruptible(ask, ANSWER_S)
    except failure:
        raise
    except LoopHeldUp:
        raise failure(f"{who}: took more than {ANSWER_S:g} s {when}; all episodes stand still as long") from None
    except (Exception, SystemExit) as error:  # the boundary to a controller of the user
        raise failure(f"{who}: raised {describe_error(error)} {when}") from error
