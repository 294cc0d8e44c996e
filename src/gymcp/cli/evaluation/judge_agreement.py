"""Agreement of a judge's verdicts with people's labels, printed and stored beside the run."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import typer

from gymcp.cli.evaluation.run_report import rewrite_report
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.errors import ConfigError
from gymcp.evaluators.judge import measure_agreement
from gymcp.evaluators.judge.agreement import Agreement, load_labels, match_labels
from gymcp.evaluators.judge.notes import collect_verdicts, pair_points
from gymcp.evaluators.judge.record import agreement_object, load_judge, save_judge
from gymcp.evaluators.statistics import Interval
from gymcp.store import TrajectoryStore, open_run
from gymcp.store.notes import NOTES_FILE, read_notes
from gymcp.types import Json

MAX_PROBLEMS_PRINTED = 10
"""Labels without an episode that are printed."""


def print_agreement(labels: Path, run: Path | None, *, by: str, as_json: bool) -> None:
    """Print agreement and kappa, and store them beside the run. Exit code 1 if a label names no judged episode.

    `labels`: a CSV file, or a run folder, whose own verdicts are compared. Raises ConfigError if no label names one.
    """
    if labels.is_dir():
        if run is not None and run.resolve() != labels.resolve():
            raise ConfigError(f"judge agreement {labels}: is a run folder, so --run {run} has no meaning: leave it out")
        print_own_agreement(labels, by=by, as_json=as_json)
        return
    if by:
        raise ConfigError(f"judge agreement {labels}: --by is for the verdicts in a run folder, not for a file")
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
        _save(run, figures)
    print_json(figures) if as_json else _print(measured)
    _print_problems(problems, len(loaded))


def print_own_agreement(run: Path, *, by: str, as_json: bool) -> None:
    """Print the agreement of a run's judge with the verdicts that people have given in the viewer, and store it.

    Exit code 1 if a verdict is left out. Raises ConfigError if there is none that can be compared.
    """
    open_run(run)
    notes = read_notes(run)
    with TrajectoryStore.open(run) as store:
        rows = store.summaries()
    verdicts = collect_verdicts(notes, rows, by=by)
    pairs, unmatched = match_labels(verdicts.labels, rows)
    problems = [*verdicts.problems, *unmatched]
    if not pairs:
        whose = f" by {by}" if by else ""
        why = in_one_line(problems[0]) if problems else f"gymcp view {run} takes verdicts beside each episode"
        raise ConfigError(f"judge agreement {run}: no verdict{whose} in {NOTES_FILE} can be compared: {why}")
    measured = measure_agreement(pairs)
    points = {name: measure_agreement(each) for name, each in pair_points(notes, rows, by=by).items()}
    figures = agreement_object(measured, len(problems))
    if points:
        figures["points"] = {
            name: {"items": each.items, "agree": each.agree, "kappa": each.kappa} for name, each in points.items()
        }
    _save(run, figures)
    if as_json:
        print_json(figures)
    else:
        _print(measured)
        for name, each in points.items():
            line = f"point {name}: agreement {each.agree:.3f} of {each.items} items"
            console.print(in_one_line(line), highlight=False, markup=False)
    _print_problems(problems, len(verdicts.labels) + len(verdicts.problems))


def _save(run: Path, figures: dict[str, Json]) -> None:
    save_judge(run, {**(load_judge(run) or {}), "agreement": figures})
    rewrite_report(run)


def _print_problems(problems: Sequence[str], labels: int) -> None:
    """Print why labels were left out; exit code 1 if any was."""
    for problem in problems[:MAX_PROBLEMS_PRINTED]:
        print(f"gymcp: label {in_one_line(problem)}", file=sys.stderr)
    if problems:
        print(f"gymcp: {len(problems)} of {labels} labels do not fit and were left out", file=sys.stderr)
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
