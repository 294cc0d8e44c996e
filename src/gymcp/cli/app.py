"""The command line: every verb has a module."""

from __future__ import annotations

import sys

import typer

from gymcp.cli.evaluation import compare, eval, grade, judge, report, stress, suites, view
from gymcp.cli.machine import clean, demo, doctor, sandbox
from gymcp.cli.output import clean_output
from gymcp.cli.servers import check, new, servers, tools
from gymcp.cli.training import export, serve, train
from gymcp.errors import GymcpError, UsageError

USAGE_ERROR = 2

app = typer.Typer(
    name="gymcp",
    help="Any MCP tool server as a Gymnasium environment: sandboxed, cleanly reset, honestly benchmarked.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("eval")(eval.command)
app.add_typer(suites.app, name="suites")
app.add_typer(servers.app, name="servers")
app.command("new")(new.command)
app.command("grade")(grade.command)
app.command("compare")(compare.command)
app.add_typer(judge.app, name="judge")
app.command("report")(report.command)
app.command("view")(view.command)
app.command("export")(export.command)
app.command("import")(export.import_command)
app.command("train")(train.command)
app.command("credit")(train.credit_command)
app.command("check")(check.command)
app.command("stress")(stress.command)
app.command("tools")(tools.command)
app.add_typer(sandbox.app, name="sandbox")
app.command("serve")(serve.command)
app.command("demo")(demo.command)
app.command("doctor")(doctor.command)
app.command("clean")(clean.command)


def run() -> None:
    """Run the command that was typed. An error that the user can mend is one line on standard error and exit code 2."""
    clean_output()
    try:
        app()
    except UsageError as error:
        print(f"gymcp: {error}", file=sys.stderr)
        sys.exit(USAGE_ERROR)
    except GymcpError as error:
        print(f"gymcp: {error}", file=sys.stderr)
        sys.exit(1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the output has gone
        sys.exit(1)
