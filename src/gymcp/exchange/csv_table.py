"""Write one line of CSV for every episode, for spreadsheets and data frames."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from gymcp.store import EpisodeRow
from gymcp.types import Json
from gymcp.visible_text import visible

COMPONENT_PREFIX = "component."
_FIELDS = ("id", "env", "task", "trial", "attempt", "seed", "group", "outcome", "score", "success", "reason", "steps")
_USAGE = ("tool_calls", "tool_errors", "prompt_tokens", "completion_tokens", "cost", "wall_s", "agent_s", "tool_s")
_SEPARATORS = frozenset(",;|\t\n")
"""Characters that end a cell in a spreadsheet, in some locale or by some choice at import."""
_SIGNS = "[=+\\-@＝＋－＠﹦﹢﹣﹫−]"
"""First characters of a formula, in ASCII and in the wide and small forms that East Asian editions accept."""
_FORMULA = re.compile(rf"""([,;|\s"']+)({_SIGNS}?)|\A(){_SIGNS}""")
"""Each run of separators, spaces and quotes with the sign behind it: linear in the length of the run."""


def header(rows: Iterable[EpisodeRow]) -> list[str]:
    """The column names: each component has a column, which is empty if an episode lacks the component."""
    names = dict.fromkeys(name for row in rows for name in row.components)
    return [*_FIELDS, *_USAGE, "tags", "grader", *(_cell(COMPONENT_PREFIX + name) for name in names)]


def write_csv(rows: Sequence[EpisodeRow], file: TextIO) -> int:
    """Write a header and one line per episode, and return the number of episodes."""
    names = list(dict.fromkeys(name for row in rows for name in row.components))
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(header(rows))
    for row in rows:
        values = [getattr(row, name) for name in _FIELDS] + [getattr(row.usage, name) for name in _USAGE]
        values += [" ".join(row.tags), row.grader, *(row.components.get(name) for name in names)]
        writer.writerow([_cell(value) for value in values])
    return len(rows)


def _cell(value: Json) -> Json:
    """The value of a cell: in a text, unseen characters are spelt out and each formula, which a model may have written,
    gets an apostrophe in front."""
    return _FORMULA.sub(_disarm, visible(value)) if isinstance(value, str) else value


def _disarm(found: re.Match[str]) -> str:
    run, sign = found[1] or "", found[0][len(found[1] or "") :]
    return f"{run}'{sign}" if sign and (found.start() == 0 or _SEPARATORS & set(run)) else found[0]
