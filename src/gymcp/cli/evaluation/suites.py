"""``gymcp suites``: list the environments, play their gates, and install the task suites behind them."""

from __future__ import annotations

import fnmatch
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import typer
from rich.table import Table
from rich.text import Text

from gymcp.agents.runner.run import Plan, select_tasks
from gymcp.cli.evaluation.gates import SuiteGates, play_gates
from gymcp.cli.machine.clean import remove_orphans
from gymcp.cli.output import console, in_one_line, print_json
from gymcp.envs import catalog
from gymcp.envs.spec import EnvSpec, LoadedEnv, load_env
from gymcp.errors import ConfigError, GymcpError, UsageError
from gymcp.mcp_servers.packages.garbage_collection import remove_folder
from gymcp.mcp_servers.packages.install_folder import InstallDrift
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.types import Suite
from gymcp.user_code import describe_error

SAMPLE_TASKS = 4
"""Tasks of a suite, evenly spread, that each agent plays."""
FEWEST_TASKS = 2
"""Tasks that each agent plays however long their gold is."""
SAMPLE_CALLS = 200
"""Gold calls of a sample together; if they are more, the sample has fewer tasks."""
CONCURRENCY = 4
AGENTS = ("oracle", "null", "mutated", "random")


def list_all(*, check: bool, full: bool, only: str, sandbox: str, as_json: bool) -> None:
    """List the environments of the catalog, or play their gates. Exit code 1 if a gate fails."""
    if full and not check:
        raise ConfigError("--full: says how many tasks --check plays; give both")
    known = (*catalog.names(), *catalog.plugin_names())
    chosen = [name for name in known if fnmatch.fnmatchcase(name, only)]
    if not chosen:
        raise ConfigError(f"--only: no environment matches '{only}'; have {', '.join(known)}")
    specs = _load_specs(chosen)
    if check:
        check_gates(list(specs), sandbox, limit=0 if full else SAMPLE_TASKS, as_json=as_json)
        return
    rows = [
        {"name": name, "description": spec.description, "installed": _is_installed(spec)}
        for name, spec in specs.items()
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


def _load_specs(names: Sequence[str]) -> dict[str, EnvSpec]:
    """The environments by name. A plug-in that cannot be loaded is left out, with a line on standard error."""
    specs: dict[str, EnvSpec] = {}
    for name in names:
        try:
            specs[name] = catalog.load_spec(name)
        except ConfigError as error:
            if name not in catalog.plugin_names():
                raise
            print(f"gymcp: {in_one_line(str(error))}; left out", file=sys.stderr)
    return specs


def _is_installed(spec: EnvSpec) -> bool:
    try:
        return spec.installed()
    except Exception as error:  # a plug-in's code, which may raise anything
        print(f"gymcp: environment '{spec.name}': {in_one_line(describe_error(error))}", file=sys.stderr)
        return False


def check_gates(chosen: Sequence[str], sandbox: str, *, limit: int, as_json: bool) -> None:
    """Play and print the gates of each suite, one line each, and every failure. Exit code 1 if a gate fails."""
    backend = get_sandbox(sandbox)
    backend.check()
    remove_orphans()
    results: list[SuiteGates] = []
    environments = _load_all(chosen)
    for loaded in environments.values():
        tasks = min(limit, size_sample(loaded.suite))  # a limit of 0 stands for all tasks
        results.append(play_gates(loaded, backend, limit=tasks, concurrency=CONCURRENCY))
        _print_progress(results, len(environments))
    if as_json:
        print_json(
            {"passed": not any(gates.wrong for gates in results), "suites": [gates.to_json() for gates in results]}
        )
    else:
        console.print(_table(results))
        for gates in results:
            for fault in gates.wrong:
                console.print(in_one_line(f"{gates.suite}: {fault}"), markup=False, highlight=False)
    if any(gates.wrong for gates in results):
        raise typer.Exit(1)


def size_sample(suite: Suite) -> int:
    """Number of tasks in a sample of the suite."""
    for size in range(SAMPLE_TASKS, FEWEST_TASKS, -1):
        tasks = select_tasks(suite, Plan(agent="random", limit=size))
        if sum(len(turn.calls) for task in tasks for turn in task.gold) <= SAMPLE_CALLS:
            return size
    return FEWEST_TASKS


def _print_progress(results: Sequence[SuiteGates], total: int) -> None:
    """A line on standard error for the last result, with the time that the other suites will take."""
    last, left = results[-1], total - len(results)
    mean = sum(gates.seconds for gates in results) / len(results)
    ended = f"{'FAIL' if last.wrong else 'pass'}, {last.seconds:.0f} s"
    after = f", about {mean * left:.0f} s left" if left else ""
    print(f"{len(results)}/{total} {last.suite}: {ended}{after}", file=sys.stderr, flush=True)


def _load_all(names: Sequence[str]) -> dict[str, LoadedEnv]:
    """The environments by name, before the gates of any are played: one that cannot be loaded costs no result.

    A plug-in that cannot be loaded is left out, with a line on standard error.
    """
    environments: dict[str, LoadedEnv] = {}
    for name in names:
        try:
            environments[name] = load_env(catalog.load_spec(name))
        except GymcpError as error:
            if name not in catalog.plugin_names():
                raise
            print(f"gymcp: plug-in '{name}': {in_one_line(str(error))}; left out", file=sys.stderr)
    return environments


def _load_repaired(spec: EnvSpec, sandbox: Sandbox | None) -> LoadedEnv:
    """The environment, prepared and loaded; a folder that has changed since its install is installed again, once."""
    repaired: set[Path] = set()
    while True:
        try:
            if spec.prepare is not None:
                spec.prepare(sandbox)
            return load_env(spec)
        except InstallDrift as error:
            if error.folder in repaired:
                raise
            if not remove_folder(error.folder):
                raise UsageError(f"{error}; a process uses {error.folder}: end it first") from error
            repaired.add(error.folder)
            console.print(in_one_line(f"installing again: {error}"), markup=False, highlight=False, soft_wrap=True)


def _table(results: Sequence[SuiteGates]) -> Table:
    table = Table(header_style="bold", box=None, padding=(0, 1, 0, 0))
    for heading in ("suite", "tasks", "tools", "oracle", "null", "mutated", "random", "digests", "s", "gates"):
        table.add_column(heading, justify="left" if heading in ("suite", "gates") else "right", no_wrap=True)
    for gates in results:
        counts = ("{}/{}".format(*gates.passed[a]) if a in gates.passed else "-" for a in AGENTS)
        ended = Text("FAIL", style="red") if gates.wrong else Text("pass", style="green")
        digests = "{}/{}".format(*gates.digests)
        table.add_row(gates.suite, str(gates.tasks), str(gates.tools), *counts, digests, f"{gates.seconds:.0f}", ended)
    return table


def install(name: str, *, sandbox: str | None) -> None:
    """Download and verify a suite's files, so that later runs need no network; changed files are installed again."""
    spec = catalog.load_spec(name)
    backend = None
    if sandbox is not None:
        backend = get_sandbox(sandbox)
        backend.check()
    env = _load_repaired(spec, backend)
    console.print(f"{name}: {len(env.suite.tasks)} tasks, version {env.suite.version}, from {env.suite.source}")
    for tag, count in Counter(task.tags[0] for task in env.suite.tasks if task.tags).items():
        console.print(f"  {tag}: {count}")
