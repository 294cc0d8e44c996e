"""``gymcp report``: write the report of a run again, or a report on several runs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from gymcp.cli.output import console, in_one_line, print_json
from gymcp.cli.runs.credit_advice import find_credit
from gymcp.cli.summary_table import print_suites, print_summary
from gymcp.envs.audit.fingerprint import suite_digest
from gymcp.envs.catalog import load_spec, names
from gymcp.envs.spec import LoadedEnv, price_steps
from gymcp.envs.wrappers.selection import WrapperSelection
from gymcp.errors import ConfigError, GymcpError
from gymcp.evaluators.metrics import PriceSteps
from gymcp.evaluators.report import FORMATS, REPORT_FILE, read_report, write_report, write_text
from gymcp.store import Run
from gymcp.store.out_file import refuse_other_file
from gymcp.types import Json, Task

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


def rewrite_report(run: Path, *, min_coverage: float | None = None, without_faulty: bool = False) -> dict[str, Json]:
    """Write the report of a run with all that this machine knows of its environment, and return the summary.

    Raises StoreError if the folder holds no run or cannot be written.
    """
    return write_report(
        run,
        find_tasks,
        min_coverage=min_coverage,
        without_faulty=without_faulty,
        find_credit=find_credit,
        find_prices=find_prices,
    )


def find_prices(run: Run) -> PriceSteps:
    """Price of an episode's calls in an environment of the catalog; nothing is known of any other.

    A run that names no source, such as a training run, is of the catalog if its environment has not only the same name
    as one of the catalog, but also the same version, suite and wrappers.
    """
    source = run.config.get("source")
    if source in names():
        return price_steps(load_spec(source))
    if source is None and (env := _find_same(run)) is not None:
        return price_steps(env.spec)
    return lambda steps: {}


def find_tasks(run: Run) -> Mapping[str, Task]:
    """Task id -> task, for a run of the catalog whose tasks have not changed since; empty for any other run.

    An environment file that a run names is not loaded, and nothing is installed: a report runs no foreign code.
    """
    env = _load_installed(run.config.get("source"))
    if env is None:
        return {}
    suite = env.suite
    return {task.id: task for task in suite.tasks} if suite_digest(suite) == run.config.get("suite_digest") else {}


def _find_same(run: Run) -> LoadedEnv | None:
    """The environment of the catalog with the name, version, suite and wrappers of the run's; None if there is none."""
    try:
        env = _load_installed(run.config.get("env"), WrapperSelection.from_config(run.config))
    except ConfigError:
        return None
    if env is None:
        return None
    here = {"env_version": env.spec.version, "suite": env.suite.name, "suite_version": env.suite.version}
    return env if here == {key: run.config.get(key) for key in here} else None


def _load_installed(name: Json, wrappers: WrapperSelection | None = None) -> LoadedEnv | None:
    """The environment of the catalog inside wrappers; None if there is none that can be loaded without installing."""
    if name not in names():
        return None
    try:
        spec = load_spec(name)
        return (wrappers or WrapperSelection()).apply(spec) if spec.installed() else None
    except GymcpError:
        return None
