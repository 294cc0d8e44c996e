"""From a run folder to the files one reads."""

from __future__ import annotations

import json
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.errors import StoreError
from gymcp.evaluators.judge.record import load_judge
from gymcp.evaluators.metrics import measure
from gymcp.evaluators.report.numbers import summary_object
from gymcp.evaluators.report.page import render
from gymcp.store import TrajectoryStore, open_run
from gymcp.types import Json

SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"


def write_report(folder: Path) -> dict[str, Json]:
    """Writes ``summary.json`` and ``report.html`` into the run folder, whole or not at all; gives the summary.

    Raises StoreError where the folder holds no run or cannot be written.
    """
    run = open_run(folder)
    with TrajectoryStore.open(folder) as store:
        attempts = store.summaries(latest=False)
    rows = [row for row in attempts if row.latest]
    summary = measure(attempts)
    found = summary_object(run, rows, summary)
    if (judge := load_judge(folder)) is not None:
        found["judge"] = {**judge, "newest_grades": sum((row.grader or "").startswith("judge ") for row in rows)}
    try:
        write_atomically(folder / SUMMARY_FILE, json.dumps(found, indent=2).encode() + b"\n")
        write_atomically(folder / REPORT_FILE, render(run, rows, summary).encode())
    except OSError as error:
        raise StoreError(f"run folder {folder}: the report cannot be written: {error.strerror or error}") from error
    return found
