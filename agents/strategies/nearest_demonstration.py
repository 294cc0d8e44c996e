"""A baseline without a model: it repeats the action of the most similar demonstration, with this task's own words.

At every step the agent compares only demonstrations that had called the same tools so far. It takes the one whose
request and last result share most words with its own, where rare words count more, and repeats that demonstration's
next action. Every part of the action that the demonstration had read is replaced by the text that stands here in the
same surroundings.
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

_WordWeights = dict[str, float]
BEFORE, AFTER = 3, 2
"""Number of words before and after a position that are compared with those around another position."""
_WORDS = re.compile(r"\w[\w.@-]*\w|\w|[^\w\s]")
_NUMBERS = re.compile(r"\d+")
_EDGE = "\n"
"""Stands for a word before the first word or after the last."""


@dataclass(frozen=True)
class Moment:
    """A demonstration just before one of its actions."""

    read: tuple[str, ...]
    """All texts read so far, the request first."""
    called: tuple[str, ...]
    """The names of the tools called so far."""
    action: Action
    """The action that follows."""


def nearest(records: Iterable[Trajectory]) -> AgentFactory:
    """An agent that follows these demonstrations. Raises ConfigError if there are none."""
    library = _Library([moment for record in records for moment in _moments(record)])

    def make(task: Task, seed: int) -> Agent:
        return _Nearest(library)

    return make


class _Library:
    """The moments of demonstrations, indexed by the tools called so far and searched by words."""

    def __init__(self, moments: Sequence[Moment]) -> None:
        if not moments:
            raise ConfigError("agent 'nearest': no demonstrations to look among")
        texts = [set(_count_words(text)) for moment in moments for text in (moment.read[0], moment.read[-1])]
        counts = Counter(word for words in texts for word in words)
        self._weights = {word: math.log((1 + len(texts)) / (1 + count)) for word, count in counts.items()}
        self._by_called: dict[tuple[str, ...], list[tuple[Moment, _WordWeights, _WordWeights]]] = {}
        for moment in moments:
            entry = (moment, self._weigh(moment.read[0]), self._weigh(moment.read[-1]))
            self._by_called.setdefault(moment.called, []).append(entry)

    def find_nearest(self, read: Sequence[str], called: tuple[str, ...]) -> Moment | None:
        """The most similar moment; None if no demonstration had called exactly these tools."""
        request, result = self._weigh(read[0]), self._weigh(read[-1])
        candidates = self._by_called.get(called, ())
        best = max(
            candidates,
            key=lambda entry: _weighted_jaccard(request, entry[1]) + _weighted_jaccard(result, entry[2]),
            default=None,
        )
        return best[0] if best is not None else None

    def _weigh(self, text: str) -> _WordWeights:
        return {word: count * self._weights.get(word, 0.0) for word, count in _count_words(text).items()}


class _Nearest:
    def __init__(self, library: _Library) -> None:
        self._library = library
        self._read: list[str] = []
        self._called: tuple[str, ...] = ()

    async def act(self, observation: Observation) -> Action:
        self._read += _texts(observation.messages)
        moment = self._library.find_nearest(self._read, self._called)
        if moment is None:
            return Action(text="")
        calls = tuple(
            ToolCall(id=f"call_{len(self._called) + number}", name=call.name, arguments=self._arguments(call, moment))
            for number, call in enumerate(moment.action.tool_calls, 1)
        )
        self._called += tuple(call.name for call in calls)
        return Action(text=self._translate(moment.action.text, moment), tool_calls=calls)

    def _arguments(self, call: ToolCall, moment: Moment) -> dict[str, Json]:
        if isinstance(call.arguments, str):
            return {}
        return {key: self._value(value, moment) for key, value in call.arguments.items()}

    def _value(self, value: Json, moment: Moment) -> Json:
        if isinstance(value, str):
            return self._translate(value, moment)
        text = self._translate(str(value), moment)
        return int(text) if isinstance(value, int) and text.isdecimal() else value

    def _translate(self, text: str, moment: Moment) -> str:
        """The text with this task's words: as a whole if the demonstration had read it as a whole, else word by word.

        A word that the demonstration had not read stays as it is.
        """
        if (replacement := self._find_replacement(_words(text), moment)) is not None:
            return replacement
        parts = re.split(r"(\s+)", text)
        return "".join(self._find_replacement(_words(part), moment) or part for part in parts)

    def _find_replacement(self, words: Sequence[str], moment: Moment) -> str | None:
        """The text here that corresponds to the latest text in which the demonstration had read these words."""
        for index in reversed(range(min(len(moment.read), len(self._read)))):
            demonstration = _words(moment.read[index])
            for start in range(len(demonstration) - len(words) + 1) if words else ():
                if demonstration[start : start + len(words)] == list(words):
                    return _find_same_surroundings(demonstration, start, len(words), self._read[index])
        return None


def _find_same_surroundings(demonstration: Sequence[str], start: int, size: int, text: str) -> str | None:
    """The `size` words of `text` whose surroundings agree most with those of the demonstration's words at `start`.

    Among equal positions the one nearest to `start` is taken; None if no surrounding word agrees.
    """
    matches = list(_WORDS.finditer(text))
    own = [match.group() for match in matches]
    before = [_word_at(demonstration, start - k) for k in range(1, BEFORE + 1)]
    after = [_word_at(demonstration, start + size - 1 + k) for k in range(1, AFTER + 1)]

    def agreement(position: int) -> tuple[int, int]:
        left = [_word_at(own, position - k) for k in range(1, BEFORE + 1)]
        right = [_word_at(own, position + size - 1 + k) for k in range(1, AFTER + 1)]
        same = sum(a == b for a, b in zip([*before, *after], [*left, *right], strict=True))
        return same, -abs(position - start)

    positions = range(len(own) - size + 1)
    if not positions:
        return None
    best = max(positions, key=agreement)
    return text[matches[best].start() : matches[best + size - 1].end()] if agreement(best)[0] else None


def _word_at(words: Sequence[str], position: int) -> str:
    """The word with every number replaced by #: surroundings that differ only in ids are the same."""
    return _NUMBERS.sub("#", words[position]) if 0 <= position < len(words) else _EDGE


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


def _count_words(text: str) -> Counter[str]:
    return Counter(_NUMBERS.sub("#", word) for word in _words(text))


def _weighted_jaccard(a: _WordWeights, b: _WordWeights) -> float:
    """The weight of the words in both texts, divided by the weight of the words in either."""
    both = sum(min(weight, b[word]) for word, weight in a.items() if word in b)
    return both / max(sum(a.values()) + sum(b.values()) - both, 1e-9)
