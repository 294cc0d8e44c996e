"""``gymcp export`` and ``gymcp import``: a run in other formats, and back."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

from gymcp.cli.output import console, print_json
from gymcp.cli.training.train import parse_settings
from gymcp.errors import ConfigError
from gymcp.evaluators.report import write_report
from gymcp.exchange.export import default_out, export
from gymcp.exchange.importing import import_run
from gymcp.exchange.source import Advantages, open_source
from gymcp.types import Json


def execute(
    run: Path,
    *,
    format: str,
    out: Path | None,
    attempts: bool,
    preset: str | None,
    settings: list[str] | None,
    env: str | None,
    as_json: bool,
) -> None:
    """Write a run as JSON lines, Parquet for trainers, ATIF documents, or a CSV table."""
    if settings and preset is None:
        raise ConfigError("--set: of which preset? name it with --preset")
    if env is not None and preset is None:
        raise ConfigError("--env: only a preset needs the environment's tasks; name it with --preset")
    if preset is not None and format == "csv":
        raise ConfigError("--preset: a csv has one line per episode and no steps to give advantages to")
    target = out or default_out(run, format)
    with open_source(run, attempts=attempts) as source:
        credited = source
        if preset is not None:
            credited = replace(source, advantages=_advantages(run, preset, parse_settings(settings or []), env))
        count = export(credited, format, target)
        left_out = sum(map(len, source.branches.values())) if format == "csv" else 0
    if as_json:
        print_json({"run": str(run), "format": format, "out": str(target), "written": count, "left_out": left_out})
    else:
        unit = {"parquet": "rows", "atif": "documents"}.get(format, "episodes")
        console.print(f"{count} {unit}: {target}", highlight=False, markup=False, soft_wrap=True)
    if left_out:
        print(
            f"gymcp: export: {left_out} branches are left out, because a csv has a line for each first episode; jsonl,"
            " parquet and atif hold them",
            file=sys.stderr,
        )


def import_episodes(file: Path, *, out: Path, as_json: bool) -> None:
    """Create a run folder from episodes that were recorded elsewhere, to view, report and train on."""
    count = import_run(file, out)
    write_report(out)
    if as_json:
        print_json({"run": str(out), "episodes": count})
    else:
        console.print(f"{count} episodes: {out}", highlight=False, markup=False, soft_wrap=True)


def _advantages(run: Path, preset: str, options: dict[str, Json], env: str | None) -> Advantages:
    """Advantages of every episode that trains. Holds the run in memory, because credit compares episodes."""
    try:
        credit_run = importlib.import_module("gymcp.cli.training.credit_run")
    except ModuleNotFoundError as error:
        raise ConfigError(f"--preset: needs '{error.name}': pip install 'gymcp[train]'") from error
    advantages: Advantages = credit_run.advantages_of(run, preset, options, env)
    return advantages
