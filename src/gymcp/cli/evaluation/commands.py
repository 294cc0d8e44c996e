"""Options of the verbs grade, stress, suites, report, compare and view; their work is in the modules beside this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gymcp.cli.completion import complete_run, complete_suite, offer
from gymcp.cli.known_names import (
    GRADERS,
    METRICS,
    REPORT_FORMATS,
    RESOLUTION,
    SANDBOXES,
    SCRIPTED_AGENTS,
    STRESSORS,
)
from gymcp.cli.lazy_verbs import defer_to
from gymcp.cli.option_types import (
    AsJson,
    Concurrency,
    EnvName,
    Limit,
    RunEnvironment,
    RunFolder,
    SandboxName,
    Seed,
    TaskPatterns,
)

suites = typer.Typer(
    invoke_without_command=True, add_completion=False, help="List the environments, or install what they need."
)


@defer_to("evaluation.grade:execute")
def grade(
    run: RunFolder,
    env: RunEnvironment = None,
    grader: Annotated[
        list[str] | None,
        typer.Option(
            help="Grader NAME or NAME:KEY of the target, or FILE.py; repeatable; default: the environment's.",
            autocompletion=offer(GRADERS),
        ),
    ] = None,
    refresh: Annotated[
        bool, typer.Option("--refresh", help="Look up again the values that dynamic graders compare with.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Grade a recorded run again, offline.

    The first grades stay, the newest count. The grader is code of the run's environment. Code of the catalog is gymcp's
    own; a file that the run names is run only if you ran it here before with the same content, or name it with --env.
    Exit code 1 if a score differs from the previous one.
    """


@defer_to("evaluation.stress:execute")
def stress(
    env: EnvName,
    stressor: Annotated[
        list[str] | None,
        typer.Option(
            help="Stressor, or several joined by +; repeatable; default: each one by itself.",
            autocompletion=offer(STRESSORS),
        ),
    ] = None,
    agent: Annotated[
        str, typer.Option(help="Agent without a model, such as adaptive.", autocompletion=offer(SCRIPTED_AGENTS))
    ] = "adaptive",
    sandbox: SandboxName = "bwrap",
    tasks: TaskPatterns = None,
    limit: Limit = 40,
    seed: Seed = 0,
    concurrency: Concurrency = 8,
    as_json: AsJson = False,
) -> None:
    """Measure how far a score falls when the tools get worse.

    The same tasks are played with the same seeds without and with each stressor. The drop in the mean score has a 95 %
    interval over the tasks. To stress a model, use `gymcp eval --stress`.
    """


@suites.callback()
def list_suites(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Play the gates of every suite on a fixed sample of its tasks.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="Play all tasks, with --check.")] = False,
    only: Annotated[
        str, typer.Option(help="Select environments whose name matches this glob.", autocompletion=complete_suite)
    ] = "*",
    sandbox: Annotated[
        str, typer.Option(help="Sandbox for --check: bwrap, docker or none.", autocompletion=offer(SANDBOXES))
    ] = "bwrap",
    as_json: AsJson = False,
) -> None:
    """List the environments of the catalog, or play their gates. Exit code 1 if a gate fails."""
    if context.invoked_subcommand is None:
        _list_suites(check=check, full=full, only=only, sandbox=sandbox, as_json=as_json)


@defer_to("evaluation.suites:list_all")
def _list_suites(*, check: bool, full: bool, only: str, sandbox: str, as_json: bool) -> None:
    """List the environments, or play their gates."""


@suites.command("install")
@defer_to("evaluation.suites:install")
def install_suite(
    name: Annotated[str, typer.Argument(help="Name in the catalog.", autocompletion=complete_suite)],
    sandbox: Annotated[
        str | None,
        typer.Option(
            help="Sandbox for the suite's own code, if it has any; none: unconfined; default: bwrap.",
            autocompletion=offer(SANDBOXES),
        ),
    ] = None,
) -> None:
    """Download and verify a suite's files, so that later runs need no network; changed files are installed again."""


@defer_to("evaluation.report:execute")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders; several are compared.", autocompletion=complete_run)],
    format: Annotated[
        str, typer.Option(help="Format: html, md or json.", autocompletion=offer(REPORT_FORMATS))
    ] = "html",
    out: Annotated[
        Path | None,
        typer.Option(help="File to write; default: report.html in or beside the run folder; md and json are printed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write the report of a run, or one report on several runs.

    For one run: a table, summary.json and report.html. For several runs: the better one, with its certainty.
    Exit code 1 if a run could not be read or compared; the others are reported.
    """


@defer_to("evaluation.compare:execute")
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
    as_json: AsJson = False,
) -> None:
    """Compare runs of the same tasks, pair by pair.

    Differences that chance alone may explain are not ranked.
    Exit code 1 if a run or a metric could not be compared; the others are compared nevertheless.
    """


@defer_to("evaluation.view:execute")
def view(
    run: Annotated[
        Path, typer.Argument(help="Run folder, of an evaluation or of a training run.", autocompletion=complete_run)
    ],
    other: Annotated[
        Path | None,
        typer.Argument(
            help="Second run folder, to show episodes of the two side by side; default: none.",
            autocompletion=complete_run,
        ),
    ] = None,
    find: Annotated[str, typer.Option(help="Initial search, such as 'is:failed tag:refund'.")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port on 127.0.0.1; 0: a free one.")] = 0,
    tokenizer: Annotated[
        Path | None,
        typer.Option(help="Tokenizer folder, to show tokens as text; default: that of the run or of its local policy."),
    ] = None,
    no_open: Annotated[bool, typer.Option("--no-open", help="Print the address without opening a browser.")] = False,
) -> None:
    """Show a run, or two side by side, in a browser.

    The pages are served on this machine only, until Ctrl-C.
    """
