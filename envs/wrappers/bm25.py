"""BM25 over the names and descriptions of tools: which of them a request may be about.

Forty lines instead of a library: a few hundred short texts, an order that is the same on every machine, and no
dependency. k1 and b are those of Lucene.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; the idf that is never
negative is Lucene's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from gymcp.types import Tool

K1, B = 1.2, 0.75
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SENTENCE = re.compile(r"[.;:!?\n]+(?:\s|$)")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ers", "ies", "es", "ed", "er", "s", "y", "e")
_LEAST_STEM = 4
_FUSION = 10
"""How much the first places of each sentence's list count beside later ones."""

Document = tuple[str, str]
"""A tool's name, and what its definition says."""


class Bm25:
    """An index over documents. `rank` gives their numbers, the best first."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        """`documents`: the words of each."""
        self._counts = [Counter(words) for words in documents]
        self._lengths = [len(words) for words in documents]
        self._mean = max(1.0, math.fsum(self._lengths) / max(1, len(documents)))
        holders = Counter(word for counts in self._counts for word in counts)
        self._idf = {word: math.log1p((len(documents) - n + 0.5) / (n + 0.5)) for word, n in holders.items()}

    def scores(self, query: Sequence[str]) -> list[float]:
        """One for each document; 0 where it shares no word with the query."""
        words = [word for word in dict.fromkeys(query) if word in self._idf]
        return [self._score(counts, length, words) for counts, length in zip(self._counts, self._lengths, strict=True)]

    def _score(self, counts: Counter[str], length: int, words: Sequence[str]) -> float:
        norm = K1 * (1 - B + B * length / self._mean)
        return math.fsum(self._idf[w] * counts[w] * (K1 + 1) / (counts[w] + norm) for w in words if w in counts)

    def rank(self, query: Sequence[str]) -> list[int]:
        """Documents that share a word with the query, of equal ones the first."""
        scores = self.scores(query)
        return sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: (-scores[n], n))


def rank_tools(tools: Sequence[Tool], request: str) -> list[Tool]:
    """All tools that share words with a request, the likeliest first.

    A request asks for several things: each sentence is searched for on its own, too, and the lists are merged by
    reciprocal ranks, so that a long sentence does not silence a short one.
    """
    index = _index(tuple((tool.name, _said(tool)) for tool in tools))
    sentences = [words for text in (request, *_SENTENCE.split(request)) if (words := words_of(text))]
    points: dict[int, float] = {}
    for words in dict.fromkeys(map(tuple, sentences)):
        for place, number in enumerate(index.rank(words)):
            points[number] = points.get(number, 0.0) + 1 / (_FUSION + place)
    return [tools[number] for number in sorted(points, key=lambda number: (-points[number], number))]


def words_of(text: str) -> list[str]:
    """Lower case, of names in any case their words, without common endings: notes, noted and noting are one word."""
    return [_stem(word.lower()) for word in _WORD.findall(text)]


@lru_cache(maxsize=64)
def _index(documents: tuple[Document, ...]) -> Bm25:
    # a name says in two words what a description says in ten: its words count twice
    return Bm25([[*words_of(name), *words_of(name), *words_of(said)] for name, said in documents])


def _said(tool: Tool) -> str:
    properties = tool.input_schema.get("properties")
    names = " ".join(map(str, properties)) if isinstance(properties, dict) else ""
    return f"{tool.description} {names}"


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word[: -len(ending)]
    return word
