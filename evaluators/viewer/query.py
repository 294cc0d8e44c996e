"""Search queries for episodes, translated to SQL conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_QUERY_CHARS = 1_000
"""Most characters of a query."""
MAX_WORDS = 32

_WORD = re.compile(r'(-?)(?:(\w+)(:|>=|<=|>|<|=))?(?:"([^"]*)"?|(\S+))')
_NUMBERS = {
    "score": "score",
    "steps": "steps",
    "calls": "calls",
    "errors": "errors",
    "tokens": "tokens",
    "seconds": "seconds",
    "cost": "cost",
    "trial": "trial",
    "branches": "branches",
    "attempt": "attempt",
    "seed": "seed",
    "version": "version",
    "iteration": "(version + 1)",
}
_TEXTS = {"task": "task", "outcome": "outcome", "group": '"group"', "why": "reason", "note": "notes", "id": "id"}
_LISTS = {"tag": "tags", "tool": "tools", "label": "labels", "verdict": "verdicts"}
_STATES = {
    "solved": "score >= 1",
    "failed": "score < 1",
    "partial": "score > 0 AND score < 1",
    "unscored": "score IS NULL",
    "replaced": "NOT latest",
    "noted": "noted",
}
KEYS = (*_NUMBERS, *_TEXTS, *_LISTS, "is")


class QueryError(Exception):
    """The query cannot be understood; the message is for the person who typed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    sql: str
    """Condition over the columns of `index.SCHEMA`."""
    values: tuple[str | float, ...]


def condition(query: str) -> Condition:
    """Conjunction of all words of the query. Raises QueryError.

    A bare word is found anywhere: in task, reason, tags and tools as it stands, in the transcript as the beginning of a
    word. ``key:value`` searches one column, ``steps>3`` compares, ``-`` before a word excludes, quotes hold words
    together.
    """
    if len(query) > MAX_QUERY_CHARS:
        raise QueryError(f"the query is longer than {MAX_QUERY_CHARS} characters")
    parts: list[str] = []
    values: list[str | float] = []
    for sign, key, operator, quoted, bare in _WORD.findall(query)[:MAX_WORDS]:
        sql, part_values = _part(key, operator, quoted or bare)
        parts.append(f"NOT coalesce(({sql}), 0)" if sign else f"({sql})")
        values += part_values
    return Condition(sql=" AND ".join(parts) or "1", values=tuple(values))


def _part(key: str, operator: str, word: str) -> tuple[str, list[str | float]]:
    if not key:
        return _anywhere(word)
    if key == "is" and operator == ":":
        if word not in _STATES:
            raise QueryError(f"is:{word}: no such state; have {', '.join(_STATES)}")
        return _STATES[word], []
    if key in _NUMBERS:
        try:
            number = float(word)
        except ValueError:
            raise QueryError(f"{key}{operator}{word}: not a number") from None
        return f"{_NUMBERS[key]} {'=' if operator == ':' else operator} ?", [number]
    if operator not in (":", "="):
        raise QueryError(f"{key}{operator}{word}: only numbers are compared: {', '.join(_NUMBERS)}")
    if key in _LISTS:
        return f"instr(char(31) || lower({_LISTS[key]}) || char(31), char(31) || ? || char(31))", [word.lower()]
    if key in _TEXTS:
        column = _TEXTS[key]
        if operator == "=":
            return f"{column} = ?", [word]
        if "*" in word:
            return f"lower({column}) GLOB ?", [word.lower()]
        return f"instr(lower({column}), ?)", [word.lower()]
    raise QueryError(f"{key}{operator}: no such key; have {', '.join(KEYS)}; in quotes it is looked for as text")


def _anywhere(word: str) -> tuple[str, list[str | float]]:
    sql, values = "instr(haystack, ?)", [word.lower()]
    if re.search(r"\w", word):
        phrase = '"' + word.replace('"', " ").replace("\0", " ") + '"*'
        return f"{sql} OR n IN (SELECT rowid FROM transcripts WHERE transcripts MATCH ?)", [*values, phrase]
    return sql, list(values)


ORDERS = {
    "recorded": "n",
    "newest": "n DESC",
    "task": "task, trial, attempt",
    "score": "score IS NULL, score, task, trial",
    "best": "score IS NULL, score DESC, task, trial",
    "steps": "steps DESC, n",
    "calls": "calls DESC, n",
    "tokens": "tokens DESC, n",
    "seconds": "seconds DESC, n",
    "iteration": "version IS NULL, version DESC, n",
}
"""SQL orders by name."""
