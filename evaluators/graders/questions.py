"""A grader of the questions that an agent asks the user. The cost of a question is never part of the score."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from gymcp.evaluators.graders.matching import calls_with_results, parse_arguments
from gymcp.protocols import Grader, StateReader
from gymcp.types import Fact, Score, Task, Trajectory

ASK_USER = "ask_user"
"""Name of the tool by which an agent asks the user."""


def match_facts(question: str, facts: Sequence[Fact]) -> list[Fact]:
    """The facts that a question names by one of their words, as a whole word and in any case."""
    words = set(re.findall(r"\w+", question.casefold()))
    return [fact for fact in facts if words & {word.casefold() for word in fact.words}]


def with_asking(grader: Grader) -> Grader:
    """Grader: the grader's score if every needed fact was asked for in time, else 0, because the agent guessed.

    In time means in a step before the first call that needs the fact (`Fact.needed_by`), whatever the result of that
    call.

    Components, in tasks with facts: ``questions`` (questions asked), ``needless`` (questions that named no needed fact
    that was still unknown), ``question_cost``; in tasks that need a question ``asked_when_needed``, the share of the
    needed facts that were asked for in time; in the others ``asked_when_not_needed``, 1 if a question was asked.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        score = grader(task, trajectory, states)
        if not task.user.facts:
            return score
        needed = [fact for fact in task.user.facts if fact.needed]
        unknown = list(needed)
        guessed: dict[str, str] = {}  # fact -> first call that needed it before the user told it
        questions, needless, cost = 0, 0, 0.0
        for _, calls in itertools.groupby(calls_with_results(trajectory), key=lambda answered: id(answered[0])):
            untold = tuple(unknown)  # a fact told in this step is too late for the step's other calls
            for _, call, result in calls:
                for fact in untold:
                    if call.name in fact.needed_by:
                        guessed.setdefault(fact.name, call.name)
                if call.name != ASK_USER or result.is_error:
                    continue
                questions += 1
                cost += result.cost
                named = match_facts(str((parse_arguments(call) or {}).get("question", "")), unknown)
                needless += not named
                unknown = [fact for fact in unknown if fact not in named]
        components = {"questions": float(questions), "needless": float(needless), "question_cost": cost}
        never = [fact.name for fact in unknown]
        late = [f"{name}, which {call} needs" for name, call in guessed.items() if name not in never]
        if needed:
            components["asked_when_needed"] = 1 - len({*never, *guessed}) / len(needed)
        else:
            components["asked_when_not_needed"] = float(questions > 0)
        reasons = [score.reason]
        reasons += [f"never asked for: {', '.join(never)}"] if never else []
        reasons += [f"asked for too late: {'; '.join(late)}"] if late else []
        return replace(
            score,
            value=0.0 if never or late else score.value,
            components={**score.components, **components},
            reason="; ".join(reasons),
        )

    return grade
