"""BM25 over the names and descriptions of tools, to rank them for a request.

Some forty lines instead of a library, because there are only a few hundred short texts, the order must be the same on
every machine, and there is no dependency. k1 and b are those of Lucene.

Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond, 2009; the idf that is
never negative is Lucene's.
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
"""Saturation of a word's count, and weight of a document's length."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[0-9]+")
_SENTENCE = re.compile(r"[.;:!?\n]+(?:\s|$)")
_ENDINGS = ("ations", "ation", "ments", "ment", "ings", "ing", "ers", "ies", "es", "ed", "er", "s", "y", "e")
_MIN_STEM_CHARS = 4
_RANK_OFFSET = 10
"""Constant k of reciprocal rank fusion, which adds 1 / (k + rank): a smaller one gives the first ranks more weight."""

Document = tuple[str, str, str]
"""Name of a tool, text of its definition, and name of its server."""
_NO_SERVERS: Mapping[str, str] = MappingProxyType({})


class Bm25:
    """An index over documents, which are numbered from 0."""

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
        """Word -> (document, the word's share of its score) for every document with the word."""
        for word, postings in counts.items():
            idf = math.log1p((len(documents) - len(postings) + 0.5) / (len(postings) + 0.5))
            self._weights[word] = [(n, idf * count * (K1 + 1) / (count + norms[n])) for n, count in postings]

    def scores(self, query: Sequence[str]) -> list[float]:
        """Score of each document; 0 if it shares no word with the query. A repeated word of the query counts once."""
        scores = [0.0] * self._size
        for word in dict.fromkeys(query):
            for number, weight in self._weights.get(word, ()):
                scores[number] += weight
        return scores

    def rank(self, query: Sequence[str]) -> list[int]:
        """Numbers of the documents that share a word with the query, the best first, equal ones in their order."""
        return _best_first(self.scores(query))


def rank_tools(tools: Sequence[Tool], request: str, servers: Mapping[str, str] = _NO_SERVERS) -> list[Tool]:
    """All tools that share words with a request, the best first.

    `servers`: tool name -> name of its server. A tool's score is that of its own text plus that of all tools of its
    server, so that a request about a record also finds the tool that looks the record up. As a request may ask for
    several things, each sentence is also searched for alone, and the rankings are merged by reciprocal rank fusion
    (Cormack et al., 2009), so that a long sentence does not outweigh a short one.
    """
    index = _index_tools(tuple((tool.name, _describe(tool), servers.get(tool.name, tool.name)) for tool in tools))
    sentences = [words for text in (request, *_SENTENCE.split(request)) if (words := tokenize(text))]
    points: dict[int, float] = {}
    for sentence in dict.fromkeys(map(tuple, sentences)):
        for place, number in enumerate(index.rank(sentence)):
            points[number] = points.get(number, 0.0) + 1 / (_RANK_OFFSET + place)
    return [tools[number] for number in sorted(points, key=lambda number: (-points[number], number))]


class _ToolIndex:
    """An index over tools and over their servers."""

    def __init__(self, documents: Sequence[Document]) -> None:
        # a name says in two words what a description says in ten, so its words count twice
        words = [[*tokenize(name), *tokenize(name), *tokenize(text)] for name, text, _ in documents]
        of_servers: dict[str, list[str]] = {}
        for (_, _, server), of_tool in zip(documents, words, strict=True):
            of_servers.setdefault(server, []).extend(of_tool)
        self._tools, self._servers = Bm25(words), Bm25(list(of_servers.values()))
        numbers = {server: number for number, server in enumerate(of_servers)}
        self._server_of = [numbers[server] for _, _, server in documents]

    def rank(self, query: Sequence[str]) -> list[int]:
        tools, servers = _normalize(self._tools.scores(query)), _normalize(self._servers.scores(query))
        scores = [score + servers[self._server_of[number]] for number, score in enumerate(tools)]
        return _best_first(scores)


@lru_cache(maxsize=64)
def _index_tools(documents: tuple[Document, ...]) -> _ToolIndex:
    return _ToolIndex(documents)


def _normalize(scores: Sequence[float]) -> list[float]:
    """The scores divided by the greatest."""
    greatest = max(scores, default=0.0) or 1.0
    return [score / greatest for score in scores]


def _best_first(scores: Sequence[float]) -> list[int]:
    """Numbers of the scores above 0, the greatest first, equal ones in their order."""
    return sorted((n for n, score in enumerate(scores) if score > 0), key=lambda n: (-scores[n], n))


def tokenize(text: str) -> list[str]:
    """The words of a text or a name in lower case, without common endings: notes, noted and noting are one word."""
    return [_stem(word.lower()) for word in _WORD.findall(text)]


def _describe(tool: Tool) -> str:
    properties = tool.input_schema.get("properties")
    names = " ".join(map(str, properties)) if isinstance(properties, dict) else ""
    return f"{tool.description} {names}"


def _stem(word: str) -> str:
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= _MIN_STEM_CHARS:
            return word[: -len(ending)]
    return word
