"""``gymcp suites``: which environments there are, and installing the task suites behind them."""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from gymcp.cli.evaluation.gates import SuiteGates, gates_of
from gymcp.cli.machine.clean import reap_before_a_run
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.envs import catalog
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ConfigError, UsageError
from gymcp.mcp_servers.packages.garbage_collection import remove_server
from gymcp.mcp_servers.packages.install_folder import InstallDrift
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox

SAMPLE = 4
"""Tasks of a suite, evenly spread, for each agent."""
CONCURRENCY = 4
AGENTS = ("oracle", "null", "mutated", "random")
app = typer.Typer(invoke_without_command=True, help="List the environments, or install what they need.")


@app.callback()
def list_all(
    context: typer.Context,
    check: Annotated[
        bool, typer.Option("--check", help="Play the gates of every suite, on a fixed sample of its tasks.")
    ] = False,
    full: Annotated[bool, typer.Option("--full", help="With --check: all tasks.")] = False,
    only: Annotated[str, typer.Option(help="Glob over the names.")] = "*",
    sandbox: Annotated[str, typer.Option(help="With --check: bwrap, docker or none.")] = "bwrap",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """List the environments of the catalog, or play their gates. Exit code 1 where a gate fails."""
    if context.invoked_subcommand is not None:
        return
    if full and not check:
        raise ConfigError("--full: says how many tasks --check plays; give both")
    chosen = [name for name in catalog.names() if fnmatch.fnmatchcase(name, only)]
    if not chosen:
        raise ConfigError(f"--only: no environment matches '{only}'; have {', '.join(catalog.names())}")
    if check:
        check_gates(chosen, sandbox, limit=0 if full else SAMPLE, as_json=as_json)
        return
    specs = {name: catalog.load_spec(name) for name in chosen}
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


def check_gates(chosen: Sequence[str], sandbox: str, *, limit: int, as_json: bool) -> None:
    """Prints one line for each suite, and what is not as it must be."""
    wall = get_sandbox(sandbox)
    wall.check()
    reap_before_a_run()
    found: list[SuiteGates] = []
    for number, name in enumerate(chosen, start=1):
        found.append(gates_of(load_env(catalog.load_spec(name)), wall, limit=limit, concurrency=CONCURRENCY))
        ended = "FAIL" if found[-1].wrong else "pass"
        mean = sum(gates.seconds for gates in found) / number
        left = f", about {mean * (len(chosen) - number):.0f} s left" if number < len(chosen) else ""
        print(f"{number}/{len(chosen)} {name}: {ended}, {found[-1].seconds:.0f} s{left}", file=sys.stderr, flush=True)
    if as_json:
        print_json({"passed": not any(gates.wrong for gates in found), "suites": [gates.row() for gates in found]})
    else:
        console.print(_table(found))
        for gates in found:
            for fault in gates.wrong:
                console.print(in_one_line(f"{gates.suite}: {fault}"), markup=False, highlight=False)
    if any(gates.wrong for gates in found):
        raise typer.Exit(1)


def _mended(spec: EnvSpec, wall: Sandbox | None) -> LoadedEnv:
    """Prepared and loaded; a folder that is not as it was installed is removed and made anew, once."""
    mended: set[Path] = set()
    while True:
        try:
            if spec.prepare is not None:
                spec.prepare(wall)
            return load_env(spec)
        except InstallDrift as error:
            if error.folder in mended:
                raise
            if not remove_server(error.folder):
                raise UsageError(f"{error}; a process uses {error.folder}: end it first") from error
            mended.add(error.folder)
            console.print(in_one_line(f"installing again: {error}"), markup=False, highlight=False, soft_wrap=True)


def _table(found: Sequence[SuiteGates]) -> Table:
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    for heading in ("suite", "tasks", "tools", "oracle", "null", "mutated", "random", "digests", "s", "gates"):
        table.add_column(heading, justify="left" if heading in ("suite", "gates") else "right", no_wrap=True)
    for gates in found:
        counts = ("{}/{}".format(*gates.passed[a]) if a in gates.passed else "-" for a in AGENTS)
        ended = Text("FAIL", style="red") if gates.wrong else Text("pass", style="green")
        digests = "{}/{}".format(*gates.digests)
        table.add_row(gates.suite, str(gates.tasks), str(gates.tools), *counts, digests, f"{gates.seconds:.0f}", ended)
    return table


@app.command("install")
def install(
    name: Annotated[str, typer.Argument(help="A catalog name.")],
    sandbox: Annotated[
        str | None, typer.Option(help="Where code of the suite runs, if any must; default: bwrap. none: unconfined.")
    ] = None,
) -> None:
    """Fetch and check what a suite needs, so that later runs need no network; what has changed is installed again."""
    spec = catalog.load_spec(name)
    wall = None
    if sandbox is not None:
        wall = get_sandbox(sandbox)
        wall.check()
    env = _mended(spec, wall)
    console.print(f"{name}: {len(env.suite.tasks)} tasks, version {env.suite.version}, from {env.suite.source}")
    for tag, count in Counter(task.tags[0] for task in env.suite.tasks if task.tags).items():
        console.print(f"  {tag}: {count}")
