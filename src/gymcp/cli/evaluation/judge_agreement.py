"""Agreement of a judge's verdicts with people's labels, printed and stored beside the run."""

from __future__ import annotations

import sys
from pathlib import Path

import typer

from gymcp.cli.output import console, in_one_line, print_json
from gymcp.errors import ConfigError
from gymcp.evaluators.judge import measure_agreement
from gymcp.evaluators.judge.agreement import Agreement, load_labels, match_labels
from gymcp.evaluators.judge.record import agreement_object, load_judge, save_judge
from gymcp.evaluators.report import write_report
from gymcp.evaluators.statistics import Interval
from gymcp.store import TrajectoryStore, open_run

MAX_PROBLEMS_PRINTED = 10
"""Labels without an episode that are printed."""


def print_agreement(labels: Path, run: Path | None, *, as_json: bool) -> None:
    """Print agreement and kappa, and store them beside the run. Exit code 1 if a label names no judged episode.

    Raises ConfigError if no label names one.
    """
    loaded = load_labels(labels)
    problems: list[str] = []
    if run is None:
        if without_verdict := [label.name for label in loaded if label.judge is None]:
            raise ConfigError(
                f"labels {labels}: {without_verdict[0]} has no verdict in a column named judge: name the judged run"
                " with --run"
            )
        pairs = [(label.person, bool(label.judge)) for label in loaded]
    else:
        open_run(run)
        with TrajectoryStore.open(run) as store:
            pairs, problems = match_labels(loaded, store.summaries())
        if not pairs:
            raise ConfigError(
                f"labels {labels}: none of the {len(loaded)} fits the run {run}: {in_one_line(problems[0])};"
                " judge the run first, and name episodes by their id, or task and trial"
            )
    measured = measure_agreement(pairs)
    figures = agreement_object(measured, len(problems))
    if run is not None:
        save_judge(run, {**(load_judge(run) or {}), "agreement": figures})
        write_report(run)
    print_json(figures) if as_json else _print(measured)
    for problem in problems[:MAX_PROBLEMS_PRINTED]:
        print(f"gymcp: label {in_one_line(problem)}", file=sys.stderr)
    if problems:
        print(f"gymcp: {len(problems)} of {len(loaded)} labels do not fit and were left out", file=sys.stderr)
        raise typer.Exit(1)


def _print(measured: Agreement) -> None:
    console.print(f"agreement      {measured.agree:.3f}  {_bounds(measured.agree_ci95)}", highlight=False)
    if measured.kappa is None:
        console.print("Cohen's kappa  not defined: person and judge give everything the same label", highlight=False)
    else:
        console.print(f"Cohen's kappa  {measured.kappa:.3f}  {_bounds(measured.kappa_ci95)}", highlight=False)
    both, person, judge, neither = measured.table
    counts = f"both pass {both}, only the person {person}, only the judge {judge}, both fail {neither}"
    console.print(f"{measured.items} items: {counts}", highlight=False)


def _bounds(interval: Interval | None) -> str:
    return "" if interval is None else f"[{interval.low:.3f}, {interval.high:.3f}]  ({interval.method})"
