"""Options of the verbs report, compare, view and watch; their work is in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.completion import complete_environment, complete_run, offer
from gymcp.cli.known_names import EXPORT_LIMIT, METRICS, REPORT_FORMATS, RESOLUTION
from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import AsJson, MinCoverage, RunFolder


@defer_to("runs.report:execute")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.", autocompletion=complete_run)],
    format: Annotated[
        str, typer.Option(help="Format: html, md or json.", autocompletion=offer(REPORT_FORMATS))
    ] = "html",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            "-o",
            help="File to write; default: report.html in or beside the run folder; md and json are printed.",
        ),
    ] = None,
    min_coverage: MinCoverage = None,
    without_faulty: Annotated[
        bool, typer.Option("--without-faulty", help="Leave out tasks that are known to be faulty upstream.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run, or one report on several runs.

    For one run: a table, summary.json and report.html. For several runs: which is better, with intervals.
    If too few episodes have a score, bounds replace the headline figure.
    Exit code 1 if a run could not be read or compared; the others are reported.
    """


@defer_to("runs.compare:execute")
def compare(
    runs: Annotated[list[Path], typer.Argument(help="Two or more run folders.", autocompletion=complete_run)],
    metric: Annotated[
        list[str] | None,
        typer.Option(
            help="Metric, such as success, cost or seconds, or a part of the score; repeatable; default: success.",
            autocompletion=offer(METRICS),
        ),
    ] = None,
    resolution: Annotated[
        float, typer.Option(min=0.0001, max=1, help="Difference to detect, as a share: 0.05 is 5 points.")
    ] = RESOLUTION,
    min_coverage: MinCoverage = None,
    as_json: AsJson = False,
) -> None:
    """Compare runs of the same tasks, pair by pair.

    Differences that chance alone may explain are not ranked. Training runs are compared in held-out success, after the
    last iteration at which all were evaluated.
    Exit code 1 if a run or a metric could not be compared, as with too few scored episodes; the others are compared
    nevertheless.
    """


@defer_to("runs.view:execute")
def view(
    runs: Annotated[
        list[Path],
        typer.Argument(
            help="Run folder; two: shown side by side; more, or a folder with runs below it: a list.",
            metavar="RUN|FOLDER...",
            autocompletion=complete_run,
        ),
    ],
    find: Annotated[str, typer.Option(help="Initial search, such as 'is:failed tag:refund'.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 0,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Tokenizer folder, to show tokens as text; default: that of the run or of its local policy."),
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(
            help="Environment file of the runs, whose code is run, for gold and target beside the episodes; repeatable;"
            " default: only the catalog.",
            autocompletion=complete_environment,
        ),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address without opening a browser.")] = False,
    name: Annotated[
        str, typer.Option(help="Name under which notes and labels of this viewer are kept; default: $USER.")
    ] = "",
    export: Annotated[
        Path | None,
        typer.Option(
            help="Folder for the pages as files, which open from the disk; an earlier export in it is replaced;"
            " default: serve the pages."
        ),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            min=0,
            help=f"Export at most this many episodes of each run, those that match --find; 0: all;"
            f" default: {EXPORT_LIMIT:,}.",
        ),
    ] = None,
) -> None:
    """Show a run, two side by side, or a list of runs, in a browser.

    The pages are served on this machine only, until Ctrl-C; with --export they are written as files.
    """


@defer_to("runs.watch:execute")
def watch(
    run: RunFolder,
    every: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two updates of the display.")] = 2.0,
) -> None:
    """Follow a run in the terminal until it ends.

    Progress, rate, time left, success with its 95 % interval, and lost episodes.
    Exit code: 0 when the run has ended, 1 if it stopped before its end, 130 if interrupted (the run goes on), 2 if
    there is no run.
    """
