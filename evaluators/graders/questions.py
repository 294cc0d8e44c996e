"""A grader of the questions that an agent asks the user.

The score is the verdict on the task and stays without prices, because success is a full score; the priced score is the
component ``net_of_price`` beside it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import replace

from gymcp.evaluators.graders.matching import calls_with_results, parse_arguments
from gymcp.evaluators.names import NET_OF_PRICE
from gymcp.protocols import Grader, StateReader
from gymcp.types import Fact, Score, Task, Trajectory

ASK_USER = "ask_user"
"""Name of the tool by which an agent asks the user."""


MAX_ASKING_WORDS = 3
"""Most words of `_ASKING_WORDS` in a question: "What is the order number, or which order is it?" has three, and a list
of everything that could be asked for has more."""
QUESTION_COMPONENTS = (
    "asked_when_needed", "asked_when_not_needed", "questions", "needless", "question_cost", NET_OF_PRICE,
)  # fmt: skip
"""Components that `with_asking` adds."""

_ASKING_WORDS = frozenset(
    {"how", "id", "identifier", "name", "number", "what", "when", "where", "which", "who", "whom", "whose"}
)
_FILLERS = frozenset(
    """a about again agree agreed am an and are at be being been by can could did do does exactly excuse exact for from
    full going had has have i in intended is it its kindly may me mean meant mention mentioned must my new of on one
    ones or our please precise shall should so tell that the their them then there these they this those to us was we
    were will with would you your always usual usually use""".split()  # noqa: SIM905
)
"""Words that may stand between the words of an entry of `Fact.words`: they change no question."""


def match_facts(question: str, facts: Sequence[Fact]) -> list[Fact]:
    """The facts that a question asks for, in any case; none if it asks for several things at once.

    An entry of `Fact.words` with one word is found anywhere. One with several words is found if they follow each other
    in this order, with nothing but fillers between them: ``which order`` is in "Which of your orders is it?", if
    ``which orders`` is an entry, and neither in "Should I cancel the order, which is open?" nor in "Which customer
    placed the order?".
    """
    if not asks_one_thing(question):
        return []
    words = [word for word in _split_words(question) if word not in _FILLERS]
    return [fact for fact in facts if any(_holds(words, entry) for entry in fact.words)]


def asks_one_thing(question: str) -> bool:
    """False for a question that asks for several things at once, so that one price would buy everything."""
    return sum(word in _ASKING_WORDS for word in _split_words(question)) <= MAX_ASKING_WORDS


def _holds(words: Sequence[str], entry: str) -> bool:
    wanted = _split_words(entry)
    kept = [word for word in wanted if word not in _FILLERS] or wanted
    return any(list(words[at : at + len(kept)]) == kept for at in range(len(words) - len(kept) + 1))


def _split_words(text: str) -> list[str]:
    """The words in lower case, without a possessive *'s*."""
    return re.findall(r"\w+", re.sub(r"['\u2019]s\b", "", text.casefold()))


def with_asking(grader: Grader) -> Grader:
    """Grader: the grader's score if every needed fact was asked for in time, else 0, because the agent guessed.

    In time means in a step before the first call that needs the fact (`Fact.needed_by`), whatever the result of that
    call.

    Components, in tasks with facts: ``questions`` (questions asked), ``needless`` (questions that asked for no needed
    fact that was still unknown), ``question_cost``, ``net_of_price`` (the score less that cost, at least 0); in tasks
    that need a question ``asked_when_needed``, the share of the needed facts that were asked for in time; in the others
    ``asked_when_not_needed``, 1 if a question was asked.
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
        value = 0.0 if never or late else score.value
        components[NET_OF_PRICE] = max(0.0, value - cost)
        return replace(
            score,
            value=value,
            components={**score.components, **components},
            reason="; ".join(reasons),
        )

    return grade
