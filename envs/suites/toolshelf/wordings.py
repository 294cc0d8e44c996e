"""How people speak of what the services keep and do; no wording names a tool.

Lines of text: ``= service | what a record is called`` with its naming field in braces, ``? field | a noun for its
value``, ``! tool | what is asked for``, with the tool's parameters in braces. ``{it}`` is what the record is called.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from gymcp.envs.suites.toolshelf.wordings_life import WORDINGS as LIFE
from gymcp.envs.suites.toolshelf.wordings_work import WORDINGS as WORK


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """Of one service."""

    subject: str
    nouns: dict[str, str] = field(default_factory=dict)
    """By field."""
    requests: dict[str, str] = field(default_factory=dict)
    """By tool."""


@lru_cache(maxsize=1)
def wordings() -> dict[str, Wording]:
    """By service. Raises ValueError for a line that is none of the three."""
    found: dict[str, Wording] = {}
    for line in filter(None, map(str.strip, (WORK + LIFE).splitlines())):
        mark, _, rest = line.partition(" ")
        name, bar, text = rest.partition(" | ")
        if mark not in ("=", "?", "!") or not bar:
            raise ValueError(f"wordings: {line!r} is no line of a service, a field or a tool")
        if mark == "=":
            newest = found[name] = Wording(subject=text)
        else:
            (newest.nouns if mark == "?" else newest.requests)[name] = text
    return found
