"""Ways from a report into the viewer: a link into an export beside the run, or the command that shows the same."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from urllib.parse import quote, urlencode

from gymcp.evaluators.report.html import Html, element
from gymcp.evaluators.report.run_data import Evidence
from gymcp.evaluators.viewer.export.folder import shows_one_run

EXPORT_FOLDER = "view"
"""Folder of a run in which its report looks for an export."""
MAX_TASK = 300
"""Characters of a task's name in a query."""
_UNSAYABLE = re.compile(r'["\ud800-\udfff]')
_GAPS = re.compile(r'(?:…| \.\.\.$|["\s*])+')
_NOT_ASCII = re.compile(r"[^\x20-\x7e]")


def find_export(run: Path, report: Path) -> str:
    """Address of the run's export from the folder of the report; empty if there is none."""
    page = run / EXPORT_FOLDER / "index.html"
    return quote(Path(os.path.relpath(page, report)).as_posix()) if shows_one_run(page.parent) else ""


def open_in_viewer(evidence: Evidence, query: str) -> Html:
    """A link to these episodes in the run's export; without one, the command to copy, folded."""
    if evidence.export:
        return element("a", "open", href=f"{evidence.export}#{urlencode({'q': query})}", class_="open", title=query)
    command = f"gymcp view {shlex.quote(str(evidence.run.folder))} --find {shlex.quote(query)}"
    return element("details", element("summary", "open"), element("code", command), class_="open")


def query_of_task(task: str) -> str:
    """The viewer's query for the failed episodes of a task: exact, or a pattern for a name that a query cannot hold."""
    if len(task) <= MAX_TASK and not _UNSAYABLE.search(task):
        return f'is:failed task="{task}"'
    pattern = _UNSAYABLE.sub("*", task[:MAX_TASK]).replace("[", "?")
    return f'is:failed task:"{pattern}*"'


def query_of_reason(kind: str) -> str:
    """The viewer's query for the failed episodes whose reason is of this kind (`metrics.reasons.reason_kind`)."""
    if kind == "no reason given":
        return 'is:failed why=""'
    pattern = _NOT_ASCII.sub("?", _GAPS.sub("*", kind)).replace("[", "?")
    return f'is:failed why:"*{pattern.strip("*")}*"'
