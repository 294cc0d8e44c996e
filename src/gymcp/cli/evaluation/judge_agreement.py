"""``gymcp judge agreement``: a judge's verdicts beside people's labels."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gymcp.cli.output import console, in_one_line, print_json
from gymcp.errors import ConfigError
from gymcp.evaluators.judge.agreement import Agreement, load_labels, match_labels, measure_agreement
from gymcp.evaluators.judge.record import agreement_object, load_judge, save_judge
from gymcp.evaluators.report import write_report
from gymcp.evaluators.statistics import Interval
from gymcp.store import TrajectoryStore, open_run

SHOWN = 10


def print_agreement(labels: Path, run: Path | None, *, as_json: bool) -> None:
    """Prints agreement and kappa, and writes them beside the run. Exit code 1 where labels name no judged episode.

    Raises ConfigError where none does.
    """
    said = load_labels(labels)
    problems: list[str] = []
    if run is None:
        if unsaid := [label.name for label in said if label.judge is None]:
            raise ConfigError(
                f"labels {labels}: {unsaid[0]} has no verdict in a column named judge: name the judged run with --run"
            )
        pairs = [(label.person, bool(label.judge)) for label in said]
    else:
        open_run(run)
        with TrajectoryStore.open(run) as store:
            pairs, problems = match_labels(said, store.summaries())
        if not pairs:
            raise ConfigError(
                f"labels {labels}: none of the {len(said)} fits the run {run}: {in_one_line(problems[0])};"
                " judge the run first, and name episodes by their id, or task and trial"
            )
    found = measure_agreement(pairs)
    figures = agreement_object(found, len(problems))
    if run is not None:
        save_judge(run, {**(load_judge(run) or {}), "agreement": figures})
        write_report(run)
    print_json(figures) if as_json else _print(found)
    for problem in problems[:SHOWN]:
        print(f"gymcp: label {in_one_line(problem)}", file=sys.stderr)
    if problems:
        print(f"gymcp: {len(problems)} of {len(said)} labels do not fit and were left out", file=sys.stderr)
        raise typer.Exit(1)


def _print(found: Agreement) -> None:
    console.print(f"agreement      {found.agree:.3f}  {_bounds(found.agree_ci95)}", highlight=False)
    if found.kappa is None:
        console.print("Cohen's kappa  not defined: person and judge give everything the same label", highlight=False)
    else:
        console.print(f"Cohen's kappa  {found.kappa:.3f}  {_bounds(found.kappa_ci95)}", highlight=False)
    both, person, judge, neither = found.table
    console.print(
        f"{found.items} items: both pass {both}, only the person {person}, only the judge {judge}, both fail {neither}",
        highlight=False,
    )


def _bounds(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]  ({interval.method})"
