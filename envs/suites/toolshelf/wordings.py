"""Wordings in which people speak of the services' records and tools; no wording names a tool.

They are lines of text: ``= service | a record's name``, with its naming field in braces; ``? field | a noun for its
value``; ``! tool | the request``, with the tool's parameters in braces. ``{it}`` stands for the record's name.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from gymcp.envs.suites.toolshelf.wordings_life import WORDINGS as LIFE
from gymcp.envs.suites.toolshelf.wordings_work import WORDINGS as WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """The wordings of one service."""

    subject: str
    """Name of a record."""
    nouns: dict[str, str] = field(default_factory=dict)
    """Nouns for values, by field."""
    requests: dict[str, str] = field(default_factory=dict)
    """Requests, by tool."""


@lru_cache(maxsize=1)
def wordings() -> dict[str, Wording]:
    """Wordings by service. Raises ValueError for a line that is none of the three."""
    by_service: dict[str, Wording] = {}
    for line in filter(None, map(str.strip, (WORK + LIFE).splitlines())):
        mark, _, rest = line.partition(" ")
        name, bar, text = rest.partition(" | ")
        if mark not in ("=", "?", "!") or not bar:
            raise ValueError(f"wordings: {line!r} is no line of a service, a field or a tool")
        if mark == "=":
            newest = by_service[name] = Wording(subject=text)
        else:
            (newest.nouns if mark == "?" else newest.requests)[name] = text
    return by_service
