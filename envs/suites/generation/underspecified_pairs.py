"""Pairs of tasks: one whose request lacks a needed fact, so that the agent must ask the user, and its complete twin."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from gymcp.evaluators.graders.questions import ASK_USER
from gymcp.types import Fact, Task, ToolCall

HINT = (
    f"If I have left out something that only I can know, ask me with {ASK_USER} before you do what hangs on it; never "
    "guess. Do not ask needlessly."
)
UNDERSPECIFIED, COMPLETE = "underspecified", "complete"
VERSION = "3"
_FIRST_NUMBER = 100
"""Number of the first task that is drawn; the suites that the tasks are taken from have no number so high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hidden:
    """A part of a request that only the user knows."""

    shown: tuple[str, ...]
    """The wordings of the part in a request, with slots open; longer wordings first."""
    vague: str
    """The words that replace the part."""
    fact: str
    """Name of the slot whose value the user must be asked for."""
    words: tuple[str, ...]
    """Entries of `Fact.words`: a question that holds one of them asks for the fact, and for nothing else."""
    question: str
    tools: tuple[str, ...]
    """Tools of which every call needs the fact."""


def ask_which(*topics: str) -> tuple[str, ...]:
    """Entries for a thing with a number or a name: "which order", "order number" ..."""
    before = ("which", "what", "number of", "id of", "name of", "specify", "provide", "identify")
    after = ("number", "id", "name")
    return (
        *(f"{ask} {topic}" for topic in topics for ask in before),
        *(f"{topic} {ask}" for topic in topics for ask in after),
    )


def ask_who(*topics: str) -> tuple[str, ...]:
    """Entries for a person: "who successor", "guest name" ... "what guest" is none: "what is the guest's task?"."""
    before = ("who", "whom", "which", "whose", "name of", "specify", "identify")
    return (*(f"{ask} {topic}" for topic in topics for ask in before), *(f"{topic} name" for topic in topics))


class Draft(Protocol):
    """The parts from which a task was made."""

    @property
    def slots(self) -> Mapping[str, object]: ...


Kind = tuple[Callable[[int], tuple[Task, Draft]], Hidden]
"""A function that makes tasks by their number, and the part that is left out of their requests."""


def make_pairs(kinds: Iterable[Kind], count: int) -> Iterator[Task]:
    """Both twins of `count` tasks of each kind; only tasks with a call that needs the left-out fact are taken."""
    for make, hidden in kinds:
        drawn = map(make, itertools.count(_FIRST_NUMBER))
        needing = ((task, draft) for task, draft in drawn if _needs(task, hidden))
        for task, draft in itertools.islice(needing, count):
            yield from make_twins(task, draft.slots, hidden)


def _needs(task: Task, hidden: Hidden) -> bool:
    return any(call.name in hidden.tools for turn in task.gold for call in turn.calls)


def make_twins(task: Task, slots: Mapping[str, object], hidden: Hidden) -> tuple[Task, Task]:
    """(underspecified, complete): the same task twice; the gold of the first begins with the question.

    The request is the last line of the task's prompt. Raises ValueError if the fact is not in the request, or is still
    in it afterwards.
    """
    (prompt,) = task.prompts
    head, _, request = prompt.rpartition("\n")
    vague = request
    for shown in hidden.shown:
        vague = _alone(shown.format(**slots)).sub(hidden.vague, vague)
    value = str(slots[hidden.fact])
    if vague == request or _alone(value).search(vague):
        raise ValueError(f"task '{task.id}': {value!r} cannot be taken out of {prompt!r}")
    fact = Fact(name=hidden.fact, words=hidden.words, says=f"It is {value}.", needed_by=hidden.tools)
    (turn,) = task.gold
    ask = ToolCall(id="call_0", name=ASK_USER, arguments={"question": hidden.question})
    complete = replace(
        task,
        id=f"{task.id}-{COMPLETE}",
        prompts=(f"{prompt}\n{HINT}",),
        user=replace(task.user, facts=(replace(fact, needed=False),)),
        tags=(*task.tags, f"request {COMPLETE}"),
    )
    return replace(
        complete,
        id=f"{task.id}-{UNDERSPECIFIED}",
        prompts=(f"{head}\n{vague}\n{HINT}",),
        user=replace(task.user, facts=(fact,)),
        gold=(replace(turn, calls=(ask, *turn.calls)),),
        last_necessary=(0, 0) if task.last_necessary is None else (0, task.last_necessary[1] + 1),
        tags=(*task.tags, f"request {UNDERSPECIFIED}"),
    ), complete


def _alone(text: str) -> re.Pattern[str]:
    """A pattern that finds the text only if it is no part of a word, a path, a date or a time."""
    return re.compile(rf"(?<![\w/-])(?<!\d:){re.escape(text)}(?![\w-]|:\d)")
