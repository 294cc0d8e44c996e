"""``gymcp report``: write the report of a run again, or a report on several runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from gymcp.cli.evaluation.run_report import find_credit, find_prices, find_tasks, rewrite_report
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.summary_table import print_suites, print_summary
from gymcp.errors import ConfigError
from gymcp.evaluators.report import FORMATS, REPORT_FILE, read_report, write_text
from gymcp.store.out_file import refuse_other_file

NOT_ALL_READ = 1
SUFFIXES = {"html": (".html", ".htm"), "md": (".md", ".txt"), "json": (".json",)}
"""Suffixes of files that a report of the format may replace."""


def execute(
    runs: list[Path], *, format: str, out: Path | None, min_coverage: float | None, without_faulty: bool, as_json: bool
) -> None:
    """Report on one run or on several. Exit code 1 if a run could not be read or compared; the others are reported."""
    if format not in FORMATS:
        raise ConfigError(f"report: no format '{format}'; have {', '.join(FORMATS)}")
    if repeated := next((run for run in runs if [each.resolve() for each in runs].count(run.resolve()) > 1), None):
        raise ConfigError(f"report: run folder {repeated} is named twice")
    if len(runs) == 1 and format == "html" and out is None:
        summary = rewrite_report(runs[0], min_coverage=min_coverage, without_faulty=without_faulty)
        print_json(summary) if as_json else print_summary(summary)
        _print_problems(summary.get("problems", ()))
        return
    file = out or runs[0].resolve().parent / REPORT_FILE
    report = read_report(
        runs,
        find_tasks,
        place=file.parent,
        min_coverage=min_coverage,
        without_faulty=without_faulty,
        find_credit=find_credit,
        find_prices=find_prices,
    )
    if format == "html" or out is not None:
        refuse_other_file(file, SUFFIXES[format], "report")
        write_text(file, report.text(format))
        if as_json:
            print_json(report.object())
        else:
            print_suites(report.object())
            console.print(f"report: {file}", highlight=False, soft_wrap=True)
    elif as_json:
        print_json(report.object())
    else:
        print(report.text(format), end="")
    _print_problems(report.problems)


def _print_problems(problems: Sequence[str]) -> None:
    for problem in problems:
        print(f"gymcp: {in_one_line(problem)}", file=sys.stderr)
    if problems:
        raise typer.Exit(NOT_ALL_READ)
