"""``gymcp report``: write the report of a run again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.output import print_json, print_summary
from gymcp.evaluators.report import write_report


def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Summarise a run: prints the table, writes summary.json and report.html beside it."""
    summary = write_report(run)
    print_json(summary) if as_json else print_summary(summary)
