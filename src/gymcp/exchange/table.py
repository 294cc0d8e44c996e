"""One line of CSV for every episode: what a spreadsheet or a data frame wants of a run."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from typing import TextIO

from gymcp.store import EpisodeRow
from gymcp.types import Json
from gymcp.visible_text import visible

COMPONENT = "component."
_FIELDS = ("id", "env", "task", "trial", "attempt", "seed", "group", "outcome", "score", "success", "reason", "steps")
_USAGE = ("tool_calls", "tool_errors", "prompt_tokens", "completion_tokens", "cost", "wall_s", "agent_s", "tool_s")
_SEPARATORS = frozenset(",;|\t\n")
"""What spreadsheets take for the end of a cell, each in some locale or by some choice at import."""
_SIGNS = "[=+\\-@＝＋－＠﹦﹢﹣﹫−]"
"""What a formula begins with, in ASCII and in the wide and small forms that East Asian editions take for it."""
_FORMULA = re.compile(rf"""([,;|\s"']+)({_SIGNS}?)|\A(){_SIGNS}""")
"""Every run of separators, spaces and quotes, and the sign behind it: linear, however long the run is."""


def header(rows: Iterable[EpisodeRow]) -> list[str]:
    """The columns: a component has its own, empty where an episode lacks it."""
    names = dict.fromkeys(name for row in rows for name in row.components)
    return [*_FIELDS, *_USAGE, "tags", "grader", *(_cell(COMPONENT + name) for name in names)]


def write_csv(rows: Sequence[EpisodeRow], file: TextIO) -> int:
    """Writes a header and one line per episode; gives the number of episodes."""
    names = list(dict.fromkeys(name for row in rows for name in row.components))
    writer = csv.writer(file, quoting=csv.QUOTE_ALL)
    writer.writerow(header(rows))
    for row in rows:
        values = [getattr(row, name) for name in _FIELDS] + [getattr(row.usage, name) for name in _USAGE]
        values += [" ".join(row.tags), row.grader, *(row.components.get(name) for name in names)]
        writer.writerow([_cell(value) for value in values])
    return len(rows)


def _cell(value: Json) -> Json:
    """With an apostrophe before each formula in a text, since a model may have written it, and what is unseen spelt
    out."""
    return _FORMULA.sub(_disarmed, visible(value)) if isinstance(value, str) else value


def _disarmed(found: re.Match[str]) -> str:
    run, sign = found[1] or "", found[0][len(found[1] or "") :]
    return f"{run}'{sign}" if sign and (found.start() == 0 or _SEPARATORS & set(run)) else found[0]
