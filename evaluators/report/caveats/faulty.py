"""The part of a report on tasks that are known to be faulty upstream: they are named, with both success rates."""

from __future__ import annotations

from gymcp.evaluators.metrics import Rate
from gymcp.evaluators.report.formatting import interval, percent
from gymcp.evaluators.report.html import Html, element, join
from gymcp.evaluators.report.run_data import Evidence, FaultyTasks
from gymcp.evaluators.report.sections import rows_section, section
from gymcp.visible_text import shorten

TITLE = "Tasks known to be faulty upstream"
RATE_HEADINGS = ("success", "of scored episodes", "95 % interval", "coverage")
TASK_HEADINGS = ("task", "fault", "source")


def faulty_section(evidence: Evidence) -> Html:
    """Success with and without these tasks, and the tasks; empty if the suite has no list."""
    faulty = evidence.faulty
    if faulty is None:
        return join()
    if not faulty.tasks:
        return section(TITLE, element("p", describe_list(faulty)))
    return join(
        rows_section(TITLE, RATE_HEADINGS, list(rate_rows(faulty)), describe_list(faulty)),
        rows_section(f"The {len(faulty.tasks)} tasks", TASK_HEADINGS, list(task_rows(faulty))),
    )


def describe_list(faulty: FaultyTasks) -> str:
    """The list in a sentence or two: what it is about, and which figures of the report count these tasks."""
    of_list = f"The list for {faulty.package} was checked on {faulty.checked}"
    if faulty.listed == 0:
        return f"{of_list} and is empty: no task is known to be faulty."
    if not faulty.tasks:
        return f"{of_list}; none of its {faulty.listed} tasks is in this run."
    left_out = (
        "All other figures of this report leave these tasks out"
        if faulty.left_out
        else ("All other figures of this report count these tasks; --without-faulty leaves them out")
    )
    return f"{of_list}. {left_out}."


def rate_rows(faulty: FaultyTasks) -> list[tuple[str, str, str, str]]:
    """Success with the faulty tasks and without them, side by side."""
    return [_rate_row("with these tasks", faulty.everything), _rate_row("without them", faulty.without)]


def _rate_row(name: str, rate: Rate) -> tuple[str, str, str, str]:
    return name, percent(rate.success), interval(rate.ci95), rate.coverage


def task_rows(faulty: FaultyTasks) -> list[tuple[str, str, str]]:
    """(task, fault, source) of each faulty task of the run."""
    return [(shorten(task, 200), fault.reason, fault.source) for task, fault in faulty.tasks.items()]
