"""``gymcp compare``: statistical comparison of several runs of the same tasks."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import typer
from rich.table import Table

from gymcp.cli.output import console, in_one_line, print_json
from gymcp.errors import ConfigError, StoreError
from gymcp.evaluators.compare import Comparison, Contender, Pair, Standing, compare, format_value
from gymcp.evaluators.equal_budget import HEADINGS, TITLE, EqualBudget, compare_budgets, lacks_judged_s, list_ways
from gymcp.evaluators.names import UPPER_BOUND_KEY, mark_upper_bound
from gymcp.evaluators.percent import format_bounds, format_percent
from gymcp.evaluators.statistics import Power
from gymcp.evaluators.training_comparison import (
    TrainingComparison,
    compare_training,
    is_training_run,
    read_training_run,
)
from gymcp.store import TrajectoryStore, open_run
from gymcp.types import Json

NOT_ALL_COMPARED = 1


def execute(
    runs: list[Path], *, metric: list[str] | None, resolution: float, min_coverage: float | None, as_json: bool
) -> None:
    """Compare runs of the same tasks, pair by pair.

    Training runs are compared in held-out success, after the last iteration at which all were evaluated.
    Exit code 1 if a run or a metric could not be compared, as with too few scored episodes; the others are compared
    nevertheless.
    """
    if any(map(is_training_run, runs)):
        problems = compare_training_runs(
            runs, metric, resolution=resolution, min_coverage=min_coverage, as_json=as_json
        )
        _say_problems(problems)
        return
    contenders, problems = read_contenders(runs)
    if len(contenders) < 2:
        raise ConfigError(f"compare: {len(contenders)} of {len(runs)} runs can be read; it takes two: {problems[0]}")
    comparisons: list[Comparison] = []
    for name in metric or ["success"]:
        try:
            comparisons.append(compare(contenders, metric=name, resolution=resolution, min_coverage=min_coverage))
        except ConfigError as error:
            problems.append(str(error))
    if not comparisons:
        raise ConfigError("; ".join(problems))
    problems += dict.fromkeys(problem for each in comparisons for problem in each.problems)
    budgets = compare_budgets(contenders, comparisons[0])
    if as_json:
        print_json(
            {
                "comparisons": [_to_json(each) for each in comparisons],
                "budgets": [asdict(each) for each in budgets],
                "problems": problems,
            }
        )
    else:
        for each in comparisons:
            _print(each)
        for budget in budgets:
            _print_budget(budget)
    _say_problems(problems)


def _say_problems(problems: Sequence[str]) -> None:
    """Print each problem, and end the command with exit code 1 if there is one."""
    for problem in problems:
        print(f"gymcp: not compared: {in_one_line(problem)}", file=sys.stderr)
    if problems:
        raise typer.Exit(NOT_ALL_COMPARED)


def compare_training_runs(
    folders: Sequence[Path],
    metric: Sequence[str] | None,
    *,
    resolution: float,
    min_coverage: float | None,
    as_json: bool,
) -> Sequence[str]:
    """Print the comparison of training runs, and return its problems.

    Raises ConfigError, with what to do, if they cannot be compared.
    """
    names = _name_runs(folders)
    if other := next((folder for folder in folders if not is_training_run(folder)), None):
        what = "holds no training run" if other.is_dir() else "no such folder"
        raise ConfigError(f"compare: run folder {other}: {what}; compare training runs with training runs alone")
    if metric:
        raise ConfigError(
            "compare: --metric is for evaluations; training runs are compared in held-out success, and other columns"
            " are printed below it"
        )
    runs = [read_training_run(folder, name) for folder, name in names.items()]
    comparison = compare_training(runs, resolution=resolution, min_coverage=min_coverage)
    if as_json:
        print_json({"names": list(names.values()), **asdict(comparison)})
    else:
        _print_training(comparison, list(names.values()))
    return comparison.problems


def _print_training(found: TrainingComparison, names: Sequence[str]) -> None:
    title = f"held-out success after iteration {found.iteration}"
    table = Table(title=title, title_justify="left", header_style="bold")
    for heading in ("split", "run"):
        table.add_column(heading)
    for heading in ("success", "95 % interval", "tasks"):
        table.add_column(heading, justify="right")
    for each in found.standings:
        success, interval = format_percent(each.success, missing="-"), "-"
        if each.bounds is not None:
            success = format_bounds(each.bounds.low, each.bounds.high)
        elif each.ci95 is not None:
            interval = f"{100 * each.ci95.low:.1f} to {100 * each.ci95.high:.1f} %"
        tasks = each.coverage or str(each.tasks)
        table.add_row(in_one_line(each.split), in_one_line(each.name), success, interval, tasks)
    console.print(table)
    for line in _describe_training(found):
        console.print(in_one_line(line), highlight=False, markup=False, soft_wrap=True)
    columns = Table(title=f"columns of iteration {found.iteration}", title_justify="left", header_style="bold")
    columns.add_column("column")
    for name in names:
        columns.add_column(in_one_line(name), justify="right")
    for column, values in found.columns.items():
        columns.add_row(column, *("-" if value is None else f"{value:.4g}" for value in values))
    if found.columns:
        console.print(columns)


def _describe_training(found: TrainingComparison) -> Iterator[str]:
    """The pairs with the statistics behind them, splits without a ranking, and caveats."""
    for pair in found.pairs:
        yield pair.words
        if pair.power is not None:
            yield f"  {_describe_resolution(pair.power)} {pair.power.tasks:,} held-out tasks"
    for split in dict.fromkeys(each.split for each in found.standings):
        of_split = [each for each in found.standings if each.split == split]
        sparse = [each.name for each in of_split if each.bounds is not None]
        if len(of_split) - len(sparse) < 2:
            yield f"{split}: no ranking: too few held-out tasks have a score in {' and in '.join(sparse)}."
    yield from (f"But {caveat}." for caveat in found.caveats)


def _describe_resolution(power: Power) -> str:
    return (
        f"sees differences from {100 * power.detectable:.1f} points on; for {100 * power.resolution:g} points it takes"
    )


def _name_runs(folders: Sequence[Path]) -> dict[Path, str]:
    """Folder -> name of the run, unique. Raises ConfigError for fewer than two runs, or for one twice."""
    if len(folders) < 2:
        raise ConfigError(f"compare: {len(folders)} run; it takes two or more")
    resolved = [folder.resolve() for folder in folders]
    if twice := next((folder for folder in resolved if resolved.count(folder) > 1), None):
        raise ConfigError(f"compare: run folder {twice} is named twice")
    names = [folder.name for folder in resolved]
    return {
        folder: name if names.count(name) == 1 else str(folder) for folder, name in zip(resolved, names, strict=True)
    }


def read_contenders(folders: Sequence[Path]) -> tuple[list[Contender], list[str]]:
    """The runs, and a reason for each that cannot be read. Raises ConfigError for fewer than two, or for one twice."""
    contenders, problems = [], []
    for folder, name in _name_runs(folders).items():
        try:
            run = open_run(folder)
            with TrajectoryStore.open(folder) as store:
                rows = store.summaries()
        except StoreError as error:
            problems.append(str(error))
            continue
        marked = mark_upper_bound(name, run.config.get(UPPER_BOUND_KEY))
        contenders.append(
            Contender(name=marked, config=run.config, rows=rows, folder=str(folder), lacks_judged_s=lacks_judged_s(run))
        )
    return contenders, problems


def _print(found: Comparison) -> None:
    metric = found.metric
    table = Table(title=f"{metric.name}, run by run", title_justify="left", header_style="bold")
    table.add_column("run")
    has_prices = any(each.net_of_price is not None for each in found.standings)
    for heading in ("mean", "95 % interval", *(["net of price"] if has_prices else []), "coverage"):
        table.add_column(heading, justify="right")
    for each in found.standings:
        net = "-" if each.net_of_price is None else format_value(metric, each.net_of_price)
        interval = each.mean.ci95
        table.add_row(
            in_one_line(each.name),
            "-" if each.mean.value is None else format_value(metric, each.mean.value),
            "-"
            if interval is None
            else f"{format_value(metric, interval.low)} to {format_value(metric, interval.high)}",
            *([net] if has_prices else []),
            each.coverage,
            style=None if each.comparable else "dim",
        )
    console.print(table)
    for line in _describe_bounds(found):
        console.print(in_one_line(line), highlight=False, markup=False, soft_wrap=True)
    for pair in found.pairs:
        console.print(in_one_line(pair.words), highlight=False, markup=False, soft_wrap=True)
        for line in _explain(pair):
            console.print(f"  {line}", highlight=False, markup=False, soft_wrap=True)
    console.print(in_one_line(found.verdict), style="bold", highlight=False, markup=False, soft_wrap=True)


def _print_budget(found: EqualBudget) -> None:
    table = Table(title=f"{TITLE}, per answer", title_justify="left", header_style="bold")
    for heading in HEADINGS:
        table.add_column(heading, justify="right" if heading else "left")
    for row in list_ways(found):
        table.add_row(*map(in_one_line, row))
    console.print(table)
    console.print(in_one_line(found.words), highlight=False, markup=False, soft_wrap=True)


def _describe_bounds(found: Comparison) -> list[str]:
    """A line for each run that lost episodes: its mean over all episodes, whatever the lost ones would have scored."""
    lines = []
    for each in found.standings:
        if each.bounds is not None and each.bounds.low < each.bounds.high:
            low, high = (format_value(found.metric, bound) for bound in (each.bounds.low, each.bounds.high))
            lines.append(f"{each.name}: over all episodes {low} if the lost ones failed, {high} if they succeeded")
    return lines


def _explain(pair: Pair) -> list[str]:
    """Lines with the statistics behind the sentence about a pair."""
    paired = pair.paired
    tests = [f"{paired.tasks} tasks, {paired.better} better, {paired.worse} worse"]
    if paired.p_permutation is not None and pair.p_holm is not None:
        tests.append(f"permutation p = {paired.p_permutation:.3g} (Holm {pair.p_holm:.3g})")
    if paired.p_mcnemar is not None:
        tests.append(f"McNemar p = {paired.p_mcnemar:.3g}")
    lines = [", ".join(tests)]
    if pair.power is not None:
        power = pair.power
        trials = f"{power.trials:,} trials of each task, or " if power.trials is not None else ""
        lines.append(f"{_describe_resolution(power)} {trials}{power.tasks:,} tasks")
    return lines


def _to_json(found: Comparison) -> dict[str, Json]:
    return {
        "metric": found.metric.name,
        "runs": [_standing_to_json(each) for each in found.standings],
        "pairs": [asdict(each) for each in found.pairs],
        "verdict": found.verdict,
    }


def _standing_to_json(standing: Standing) -> dict[str, Json]:
    """The standing; `net_of_price` is left out if nothing had a price."""
    fields = asdict(standing)
    if standing.net_of_price is None:
        del fields["net_of_price"]
    return fields
