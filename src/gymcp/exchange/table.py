"""One line of CSV for every episode: what a spreadsheet or a data frame wants of a run."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from typing import TextIO

from gymcp.exchange.conversation import clean_text
from gymcp.store import EpisodeRow
from gymcp.types import Json

COMPONENT = "component."
_FIELDS = ("id", "env", "task", "trial", "attempt", "seed", "group", "outcome", "score", "success", "reason", "steps")
_USAGE = ("tool_calls", "tool_errors", "prompt_tokens", "completion_tokens", "cost", "wall_s", "agent_s", "tool_s")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""What a spreadsheet runs as a formula: such texts get an apostrophe, since a model may have written them."""


def header(rows: Iterable[EpisodeRow]) -> list[str]:
    """The columns: a component has its own, empty where an episode lacks it."""
    names = dict.fromkeys(name for row in rows for name in row.components)
    return [*_FIELDS, *_USAGE, "tags", "grader", *(_cell(COMPONENT + name) for name in names)]


def write_csv(rows: Sequence[EpisodeRow], file: TextIO) -> int:
    """Writes a header and one line per episode; gives the number of episodes."""
    names = list(dict.fromkeys(name for row in rows for name in row.components))
    writer = csv.writer(file)
    writer.writerow(header(rows))
    for row in rows:
        values = [getattr(row, name) for name in _FIELDS] + [getattr(row.usage, name) for name in _USAGE]
        values += [" ".join(row.tags), row.grader, *(row.components.get(name) for name in names)]
        writer.writerow([_cell(value) for value in values])
    return len(rows)


def _cell(value: Json) -> Json:
    if not isinstance(value, str):
        return value
    text = clean_text(value).replace("\0", "�")
    return f"'{text}" if text.startswith(_FORMULA) else text
