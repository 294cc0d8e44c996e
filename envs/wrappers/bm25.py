"""BM25 over the names and descriptions of tools: which of them a request may be about.

Some forty lines instead of a library: a few hundred short texts, an order that is the same on every machine, and no
dependency. k1 and b are those of Lucene.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; the idf that is never
negative is Lucene's.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType

from gymcp.types import Tool

K1, B = 1.2, 0.75
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SENTENCE = re.compile(r"[.;:!?\n]+(?:\s|$)")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ers", "ies", "es", "ed", "er", "s", "y", "e")
_LEAST_STEM = 4
_FUSION = 10
"""How much the first places of each sentence's list count beside later ones."""

Document = tuple[str, str, str]
"""A tool's name, what its definition says, and its server."""
_NO_SERVERS: Mapping[str, str] = MappingProxyType({})


class Bm25:
    """An index over documents. `rank` gives their numbers, the best first."""

    def __init__(self, documents: Sequence[Sequence[str]]) -> None:
        """`documents`: the words of each."""
        self._size = len(documents)
        mean = max(1.0, math.fsum(map(len, documents)) / max(1, len(documents)))
        counts: dict[str, list[tuple[int, int]]] = {}
        for number, words in enumerate(documents):
            for word, count in Counter(words).items():
                counts.setdefault(word, []).append((number, count))
        norms = [K1 * (1 - B + B * len(words) / mean) for words in documents]
        self._weights: dict[str, list[tuple[int, float]]] = {}
        """By word, the documents that have it, with what it adds to their scores."""
        for word, found in counts.items():
            idf = math.log1p((len(documents) - len(found) + 0.5) / (len(found) + 0.5))
            self._weights[word] = [(n, idf * count * (K1 + 1) / (count + norms[n])) for n, count in found]

    def scores(self, query: Sequence[str]) -> list[float]:
        """One for each document; 0 where it shares no word with the query, in which a word counts once."""
        scores = [0.0] * self._size
        for word in dict.fromkeys(query):
            for number, weight in self._weights.get(word, ()):
                scores[number] += weight
        return scores

    def rank(self, query: Sequence[str]) -> list[int]:
        """Documents that share a word with the query, of equal ones the first."""
        return _best_first(self.scores(query))


def rank_tools(tools: Sequence[Tool], request: str, servers: Mapping[str, str] = _NO_SERVERS) -> list[Tool]:
    """All tools that share words with a request, the likeliest first.

    `servers`: by tool, whose it is. A tool counts for what it says itself and for what all tools of its server say, so
    that the one which finds a record is found where the record is spoken of. A request asks for several things: each
    sentence is searched for on its own, too, and the lists are merged by reciprocal ranks (Cormack et al., 2009), so
    that a long sentence does not silence a short one.
    """
    shelf = _shelf(tuple((tool.name, _said(tool), servers.get(tool.name, tool.name)) for tool in tools))
    sentences = [words for text in (request, *_SENTENCE.split(request)) if (words := words_of(text))]
    points: dict[int, float] = {}
    for sentence in dict.fromkeys(map(tuple, sentences)):
        for place, number in enumerate(shelf.rank(sentence)):
            points[number] = points.get(number, 0.0) + 1 / (_FUSION + place)
    return [tools[number] for number in sorted(points, key=lambda number: (-points[number], number))]


class _Shelf:
    """Tools with their servers, indexed."""

    def __init__(self, documents: Sequence[Document]) -> None:
        # a name says in two words what a description says in ten: its words count twice
        words = [[*words_of(name), *words_of(name), *words_of(said)] for name, said, _ in documents]
        of_servers: dict[str, list[str]] = {}
        for (_, _, server), of_tool in zip(documents, words, strict=True):
            of_servers.setdefault(server, []).extend(of_tool)
        self._tools, self._servers = Bm25(words), Bm25(list(of_servers.values()))
        numbers = {server: number for number, server in enumerate(of_servers)}
        self._server_of = [numbers[server] for _, _, server in documents]

    def rank(self, query: Sequence[str]) -> list[int]:
        tools, servers = _to_one(self._tools.scores(query)), _to_one(self._servers.scores(query))
        scores = [score + servers[self._server_of[number]] for number, score in enumerate(tools)]
        return _best_first(scores)


@lru_cache(maxsize=64)
def _shelf(documents: tuple[Document, ...]) -> _Shelf:
    return _Shelf(documents)


def _to_one(scores: Sequence[float]) -> list[float]:
    """With 1 as the greatest."""
    greatest = max(scores, default=0.0) or 1.0
    return [score / greatest for score in scores]


def _best_first(scores: Sequence[float]) -> list[int]:
    """The numbers of those above 0, of equal ones the first."""
    return sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: (-scores[n], n))


def words_of(text: str) -> list[str]:
    """Lower case, of names in any case their words, without common endings: notes, noted and noting are one word."""
    return [_stem(word.lower()) for word in _WORD.findall(text)]


def _said(tool: Tool) -> str:
    properties = tool.input_schema.get("properties")
    names = " ".join(map(str, properties)) if isinstance(properties, dict) else ""
    return f"{tool.description} {names}"


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _LEAST_STEM:
            return word[: -len(ending)]
    return word
