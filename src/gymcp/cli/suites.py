"""``gymcp suites``: which environments there are, and installing the task suites behind them."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer
from rich.table import Table

from gymcp.cli.output import console, print_json
from gymcp.envs import catalog
from gymcp.envs.spec import load_env
from gymcp.mcp_servers.sandbox import get_sandbox

app = typer.Typer(invoke_without_command=True, help="List the environments, or install what they need.")


@app.callback()
def list_all(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """List the environments of the catalog."""
    if context.invoked_subcommand is not None:
        return
    specs = {name: catalog.load_spec(name) for name in catalog.names()}
    rows = [
        {"name": name, "description": spec.description, "installed": spec.installed()} for name, spec in specs.items()
    ]
    if as_json:
        print_json({"suites": rows})
        return
    table = Table(header_style="bold")
    for heading in ("environment", "installed", "what it is"):
        table.add_column(heading)
    for row in rows:
        table.add_row(str(row["name"]), "yes" if row["installed"] else "on first use", str(row["description"]))
    console.print(table)
    console.print("Run one with: gymcp eval NAME --agent oracle", style="dim")


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="A catalog name.")],
    sandbox: Annotated[
        str | None, typer.Option(help="Where code of the suite runs, if any must; default: bwrap. none: unconfined.")
    ] = None,
) -> None:
    """Fetch and check what a suite needs, so that later runs need no network."""
    spec = catalog.load_spec(name)
    if sandbox is not None and spec.prepare is not None:
        wall = get_sandbox(sandbox)
        wall.check()
        spec.prepare(wall)
    env = load_env(spec)
    console.print(f"{name}: {len(env.suite.tasks)} tasks, version {env.suite.version}, from {env.suite.source}")
    for tag, count in Counter(task.tags[0] for task in env.suite.tasks if task.tags).items():
        console.print(f"  {tag}: {count}")
