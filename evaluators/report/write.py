"""Reports: from run folders to the files that people read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from gymcp.atomic import write_atomically
from gymcp.errors import StoreError
from gymcp.evaluators.compare import Comparison
from gymcp.evaluators.report.comparison_page import compare_tries, render_comparison
from gymcp.evaluators.report.formatting import comparison_object, report_object, summary_of
from gymcp.evaluators.report.links import find_export
from gymcp.evaluators.report.markdown import render_markdown
from gymcp.evaluators.report.matrix_page import SuiteRuns, compare_suites, render_matrix
from gymcp.evaluators.report.page import render
from gymcp.evaluators.report.run_data import Evidence, FindCredit, FindPrices, FindTasks, read_evidence
from gymcp.evaluators.report.training_page import render_training, render_trainings
from gymcp.types import Json

SUMMARY_FILE = "summary.json"
REPORT_FILE = "report.html"
FORMATS = ("html", "md", "json")


def write_report(
    folder: Path,
    find_tasks: FindTasks = lambda run: {},
    *,
    min_coverage: float | None = None,
    without_faulty: bool = False,
    find_credit: FindCredit = lambda folder, tasks: None,
    find_prices: FindPrices = lambda run: lambda steps: {},
) -> dict[str, Json]:
    """Write ``summary.json`` and ``report.html`` into the run folder, each whole or not at all, and return the summary.

    The options are those of `read_evidence`.

    Raises StoreError if the folder holds no run or cannot be written.
    """
    evidence = read_evidence(
        folder,
        find_tasks,
        min_coverage=min_coverage,
        without_faulty=without_faulty,
        find_credit=find_credit,
        find_prices=find_prices,
    )
    evidence = replace(evidence, export=find_export(folder, folder))
    summary = summarize(evidence)
    write_text(folder / SUMMARY_FILE, json.dumps(summary, indent=2) + "\n")
    write_text(folder / REPORT_FILE, _render_one(evidence))
    return summary


def summarize(evidence: Evidence) -> dict[str, Json]:
    """The content of ``summary.json``: figures, the judge's share of them, and what could not be read."""
    summary = summary_of(evidence)
    if evidence.judge is not None:
        summary["judge"] = evidence.judge
    if evidence.problems:
        summary["problems"] = list(evidence.problems)
    return summary


def _render_one(evidence: Evidence) -> str:
    return render(evidence) if evidence.recipe is None else render_training(evidence)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Report of one run or of several."""

    evidence: tuple[Evidence, ...]
    unread: tuple[str, ...]
    """Reasons why runs are missing."""
    suites: tuple[SuiteRuns, ...]
    """The runs by suite, training runs left out."""

    @property
    def comparison(self) -> Comparison | None:
        """Comparison of runs of one suite; None if there are several suites or nothing to compare."""
        return self.suites[0].comparison if len(self.suites) == 1 else None

    @property
    def problems(self) -> tuple[str, ...]:
        """All that could not be read or compared, in whole or in part."""
        partly = [problem for each in self.evidence for problem in each.problems]
        apart = [problem for each in self.suites if each.comparison for problem in each.comparison.problems]
        return (*self.unread, *partly, *apart)

    def text(self, format: str) -> str:
        """The report in format ``html``, ``md`` or ``json``."""
        if format == "md":
            return render_markdown(self.evidence, self.suites, self.unread)
        if format == "json":
            return json.dumps(self.object(), indent=2) + "\n"
        if len(self.evidence) == 1 and not self.unread:
            return _render_one(self.evidence[0])
        if not self.suites:
            return render_trainings(self.evidence, self.problems)
        if len(self.suites) > 1 or any(each.recipe is not None for each in self.evidence):
            return render_matrix(self.evidence, self.suites, self.problems)
        return render_comparison(self.evidence, self.comparison, self.problems)

    def object(self) -> dict[str, Json]:
        """The report as JSON."""
        return {
            "runs": [report_object(each) for each in self.evidence],
            "comparison": None if self.comparison is None else comparison_object(self.comparison),
            "suites": [
                {
                    "name": each.name,
                    "runs": [run.name for run in each.runs],
                    "comparison": None if each.comparison is None else comparison_object(each.comparison),
                    "budgets": [asdict(budget) for budget in compare_tries(each.runs, each.comparison)],
                }
                for each in self.suites
            ],
            "problems": list(self.problems),
        }


def read_report(
    folders: Sequence[Path],
    find_tasks: FindTasks,
    *,
    place: Path | None = None,
    min_coverage: float | None = None,
    without_faulty: bool = False,
    find_credit: FindCredit = lambda folder, tasks: None,
    find_prices: FindPrices = lambda run: lambda steps: {},
) -> Report:
    """Report of the runs that can be read, for a file in the folder `place`.

    The other options are those of `read_evidence`. Raises StoreError if none can be read.
    """
    evidence: list[Evidence] = []
    unread: list[str] = []
    names = [folder.resolve().name for folder in folders]
    for folder, name in zip(folders, names, strict=True):
        title = "" if len(folders) == 1 else name if names.count(name) == 1 else str(folder)
        try:
            data = read_evidence(
                folder,
                find_tasks,
                name=title,
                min_coverage=min_coverage,
                without_faulty=without_faulty,
                find_credit=find_credit,
                find_prices=find_prices,
            )
            evidence.append(replace(data, export="" if place is None else find_export(folder, place)))
        except StoreError as error:
            unread.append(str(error))
    if not evidence:
        raise StoreError("; ".join(unread) or "report: no run")
    return Report(evidence=tuple(evidence), unread=tuple(unread), suites=compare_suites(evidence))


def write_text(file: Path, text: str) -> None:
    """Write a report, whole or not at all. Raises StoreError if it cannot be written."""
    try:
        write_atomically(file, text.encode())
    except OSError as error:
        raise StoreError(f"report {file}: cannot be written: {error.strerror or error}") from error
