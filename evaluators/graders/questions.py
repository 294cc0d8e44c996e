"""Was the user asked what had to be asked, and nothing else? What a question costs is never part of the score."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from gymcp.evaluators.graders.matching import calls_with_results, parse_arguments
from gymcp.protocols import Grader, StateReader
from gymcp.types import Fact, Score, Task, Trajectory

ASK_USER = "ask_user"
"""The tool by which an agent asks."""


def match_facts(question: str, facts: Sequence[Fact]) -> list[Fact]:
    """The facts that a question names, by a whole word of theirs, in any case."""
    words = set(re.findall(r"\w+", question.casefold()))
    return [fact for fact in facts if words & {word.casefold() for word in fact.words}]


def with_asking(grader: Grader) -> Grader:
    """The grader's verdict, where everything that was needed was asked for in time; else 0: it was guessed.

    In time: in a step before the first call that needs it (`Fact.needed_by`), whatever came of that call.

    Components, in tasks with facts: ``questions`` (how many were asked), ``needless`` (how many of them named no fact
    that was needed and had not been told yet), ``question_cost``; in tasks that need a question ``asked_when_needed``,
    the share of the needed facts that were asked for in time; in the others ``asked_when_not_needed``, 1 where any was
    asked.
    """

    def grade(task: Task, trajectory: Trajectory, states: StateReader) -> Score:
        score = grader(task, trajectory, states)
        if not task.facts:
            return score
        needed = [fact for fact in task.facts if fact.needed]
        left = list(needed)
        guessed: dict[str, str] = {}  # fact -> the first call that needed it before it was told
        questions, needless, cost = 0, 0, 0.0
        for _, calls in itertools.groupby(calls_with_results(trajectory), key=lambda answered: id(answered[0])):
            untold = tuple(left)  # what is told in a step comes too late for its other calls
            for _, call, result in calls:
                for fact in untold:
                    if call.name in fact.needed_by:
                        guessed.setdefault(fact.name, call.name)
                if call.name != ASK_USER or result.is_error:
                    continue
                questions += 1
                cost += result.cost
                told = match_facts(str((parse_arguments(call) or {}).get("question", "")), left)
                needless += not told
                left = [fact for fact in left if fact not in told]
        components = {"questions": float(questions), "needless": float(needless), "question_cost": cost}
        never = [fact.name for fact in left]
        late = [f"{name}, which {call} needs" for name, call in guessed.items() if name not in never]
        if needed:
            components["asked_when_needed"] = 1 - len({*never, *guessed}) / len(needed)
        else:
            components["asked_when_not_needed"] = float(questions > 0)
        said = [score.reason]
        said += [f"never asked for: {', '.join(never)}"] if never else []
        said += [f"asked for too late: {'; '.join(late)}"] if late else []
        return replace(
            score,
            value=0.0 if never or late else score.value,
            components={**score.components, **components},
            reason="; ".join(said),
        )

    return grade
