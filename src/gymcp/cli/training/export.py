"""``gymcp export`` and ``gymcp import``: runs in the formats of others, and back."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.output import console, print_json
from gymcp.cli.training.train import parsed
from gymcp.errors import ConfigError
from gymcp.evaluators.report import write_report
from gymcp.exchange.export import FORMATS, default_out, export
from gymcp.exchange.importing import import_run
from gymcp.exchange.source import Advantages, open_source
from gymcp.types import Json


def command(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    format: Annotated[str, typer.Option(help=f"One of {', '.join(FORMATS)}; docs/exchange.md says what each keeps.")],
    out: Annotated[
        Path | None, typer.Option(help="File, for atif a folder; default: export.FORMAT or atif/ in the run folder.")
    ] = None,
    attempts: Annotated[bool, typer.Option("--attempts", help="Those that a later one replaced, too.")] = False,
    preset: Annotated[
        str | None, typer.Option(help="Also the advantages that this preset gives: see docs/credit.md.")
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="key=value of the preset, again for more.")
    ] = None,
    env: Annotated[
        str | None,
        typer.Option(
            help="With a preset that compares with gold: environment file of the run, whose code is then run."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Write a run as JSON lines, Parquet for trainers, ATIF documents, or a CSV table."""
    if settings and preset is None:
        raise ConfigError("--set: of which preset? name it with --preset")
    if env is not None and preset is None:
        raise ConfigError("--env: only a preset needs the environment's tasks; name it with --preset")
    if preset is not None and format == "csv":
        raise ConfigError("--preset: a csv has one line per episode and no steps to give advantages to")
    where = out or default_out(run, format)
    with open_source(run, attempts=attempts) as source:
        credited = source
        if preset is not None:
            credited = replace(source, advantages=_advantages(run, preset, parsed(settings or []), env))
        count = export(credited, format, where)
    if as_json:
        print_json({"run": str(run), "format": format, "out": str(where), "written": count})
    else:
        what = {"parquet": "rows", "atif": "documents"}.get(format, "episodes")
        console.print(f"{count} {what}: {where}", highlight=False, markup=False, soft_wrap=True)


def import_command(
    file: Annotated[Path, typer.Argument(help="An ATIF document, lines of them or of `gymcp export`, or a folder.")],
    out: Annotated[Path, typer.Option(help="The run folder to make.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Make a run folder of episodes that were recorded elsewhere; view it, report it, train on it."""
    count = import_run(file, out)
    write_report(out)
    if as_json:
        print_json({"run": str(out), "episodes": count})
    else:
        console.print(f"{count} episodes: {out}", highlight=False, markup=False, soft_wrap=True)


def _advantages(run: Path, preset: str, options: dict[str, Json], env: str | None) -> Advantages:
    """Of every episode that trains. Holds the run in memory: credit compares episodes."""
    try:
        dry_run = importlib.import_module("gymcp.cli.training.dry_run")
    except ModuleNotFoundError as error:
        raise ConfigError(f"--preset: needs '{error.name}': pip install 'gymcp[train]'") from error
    found: Advantages = dry_run.advantages_of(run, preset, options, env)
    return found
