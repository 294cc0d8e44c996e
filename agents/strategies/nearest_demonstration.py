"""A baseline without a model: does what the most similar demonstration did, with this task's own words in its places.

At every step it looks for the demonstration whose request, and whose last result, share most words with its own, rare
words counting more, where that demonstration had made calls of the same tools so far; and repeats that demonstration's
action. What of the action the demonstration had read somewhere is replaced by what stands here in the same
surroundings.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gymcp.errors import ConfigError
from gymcp.protocols import Agent, AgentFactory
from gymcp.types import Action, Json, Message, Observation, Task, ToolCall, Trajectory

_Bag = dict[str, float]
BEFORE, AFTER = 3, 2
"""Words around a place that tell it from others."""
_WORDS = re.compile(r"\w[\w.@-]*\w|\w|[^\w\s]")
_NUMBERS = re.compile(r"\d+")
_EDGE = "\n"
"""Stands before the first word and after the last."""


@dataclass(frozen=True)
class Moment:
    """A demonstration where it acts: all it has read, request first, the tools it has called, and what it does then."""

    read: tuple[str, ...]
    called: tuple[str, ...]
    action: Action


def nearest(records: Iterable[Trajectory]) -> AgentFactory:
    """The agent that knows these demonstrations. Raises ConfigError where there are none."""
    library = _Library([moment for record in records for moment in _moments(record)])

    def make(task: Task, seed: int) -> Agent:
        return _Nearest(library)

    return make


class _Library:
    """Moments of demonstrations by the tools that had been called, to be found by words."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        if not moments:
            raise ConfigError("agent 'nearest': no demonstrations to look among")
        texts = [set(_bag(text)) for moment in moments for text in (moment.read[0], moment.read[-1])]
        counts = Counter(word for words in texts for word in words)
        self._weights = {word: math.log((1 + len(texts)) / (1 + count)) for word, count in counts.items()}
        self._by_called: dict[tuple[str, ...], list[tuple[Moment, _Bag, _Bag]]] = {}
        for moment in moments:
            entry = (moment, self._weigh(moment.read[0]), self._weigh(moment.read[-1]))
            self._by_called.setdefault(moment.called, []).append(entry)

    def nearest(self, read: Sequence[str], called: tuple[str, ...]) -> Moment | None:
        """None where no demonstration had called these tools."""
        request, result = self._weigh(read[0]), self._weigh(read[-1])
        known = self._by_called.get(called, ())
        best = max(known, key=lambda entry: _weighted_jaccard(request, entry[1]) + _weighted_jaccard(result, entry[2]), default=None)
        return best[0] if best is not None else None

    def _weigh(self, text: str) -> _Bag:
        return {word: count * self._weights.get(word, 0.0) for word, count in _bag(text).items()}


class _Nearest:
    def __init__(self, library: _Library) -> None:
        self._library = library
        self._read: list[str] = []
        self._called: tuple[str, ...] = ()

    async def act(self, observation: Observation) -> Action:
        self._read += _texts(observation.messages)
        chosen = self._library.nearest(self._read, self._called)
        if chosen is None:
            return Action(text="")
        calls = tuple(
            ToolCall(id=f"call_{len(self._called) + number}", name=call.name, arguments=self._fill_arguments(call, chosen))
            for number, call in enumerate(chosen.action.tool_calls, 1)
        )
        self._called += tuple(call.name for call in calls)
        return Action(text=self._translate(chosen.action.text, chosen), tool_calls=calls)

    def _fill_arguments(self, call: ToolCall, moment: Moment) -> dict[str, Json]:
        if isinstance(call.arguments, str):
            return {}
        return {key: self._value(value, moment) for key, value in call.arguments.items()}

    def _value(self, value: Json, moment: Moment) -> Json:
        said = self._translate(value, moment) if isinstance(value, str) else self._translate(str(value), moment)
        return int(said) if isinstance(value, int) and said.isdecimal() else said if isinstance(value, str) else value

    def _translate(self, text: str, moment: Moment) -> str:
        """As one where it was read in one piece, else word by word; what was not read stays."""
        if (found := self._find_words_here(_words(text), moment)) is not None:
            return found
        parts = re.split(r"(\s+)", text)
        return "".join(self._find_words_here(_words(part), moment) or part for part in parts)

    def _find_words_here(self, words: Sequence[str], moment: Moment) -> str | None:
        """What stands here where the demonstration had read these words, the latest time it did."""
        for at in reversed(range(min(len(moment.read), len(self._read)))):
            theirs = _words(moment.read[at])
            for start in range(len(theirs) - len(words) + 1) if words else ():
                if theirs[start : start + len(words)] == list(words):
                    return _in_the_same_place(theirs, start, len(words), self._read[at])
        return None


def _in_the_same_place(theirs: Sequence[str], start: int, size: int, text: str) -> str | None:
    """As many words of our text, where what stands around them agrees most; the nearest place where several agree."""
    found = list(_WORDS.finditer(text))
    ours = [word.group() for word in found]
    before = [_at(theirs, start - k) for k in range(1, BEFORE + 1)]
    after = [_at(theirs, start + size - 1 + k) for k in range(1, AFTER + 1)]

    def agreement(at: int) -> tuple[int, int]:
        left = [_at(ours, at - k) for k in range(1, BEFORE + 1)]
        right = [_at(ours, at + size - 1 + k) for k in range(1, AFTER + 1)]
        same = sum(a == b for a, b in zip([*before, *after], [*left, *right], strict=True))
        return same, -abs(at - start)

    places = range(len(ours) - size + 1)
    if not places:
        return None
    best = max(places, key=agreement)
    return text[found[best].start() : found[best + size - 1].end()] if agreement(best)[0] else None


def _at(words: Sequence[str], place: int) -> str:
    """With numbers as one: what stands around a place is the same whatever ids it names."""
    return _NUMBERS.sub("#", words[place]) if 0 <= place < len(words) else _EDGE


def _moments(record: Trajectory) -> Iterator[Moment]:
    read: list[str] = []
    called: list[str] = []
    for step in record.steps:
        read += _texts(step.observation.messages)
        yield Moment(read=tuple(read), called=tuple(called), action=step.action)
        called += [call.name for call in step.action.tool_calls]


def _texts(messages: Iterable[Message]) -> list[str]:
    return [message.content for message in messages if message.role != "system"]


def _words(text: str) -> list[str]:
    return _WORDS.findall(text)


def _bag(text: str) -> Counter[str]:
    return Counter(_NUMBERS.sub("#", word) for word in _words(text))


def _weighted_jaccard(a: _Bag, b: _Bag) -> float:
    """Of the weight of all words of both, the share that both have."""
    both = sum(min(weight, b[word]) for word, weight in a.items() if word in b)
    return both / max(sum(a.values()) + sum(b.values()) - both, 1e-9)
