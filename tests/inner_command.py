"""Run a command line in the process of the test: for messages and files, without a start; see `cli_runner`, too."""

from __future__ import annotations

from typer.testing import CliRunner, Result

from gymcp.cli.app import app


def gymcp(*words: object) -> Result:
    """The ended command; its `exception` is what an error line says."""
    return CliRunner().invoke(app, [str(word) for word in words])
