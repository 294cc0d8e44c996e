"""``gymcp servers``: third-party MCP servers, locked to the byte and installed apart from each other."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from gymcp.cli.output import console, print_json
from gymcp.errors import ConfigError, GymcpError
from gymcp.mcp_servers.installs.commands import parse_command, read_config
from gymcp.mcp_servers.installs.install import ensure_installed, folder_of
from gymcp.mcp_servers.locked import check_server, how_it_starts, lock_server
from gymcp.mcp_servers.lockfile import DEFAULT, LockedServer, editing, locked, read_lock
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.tool_hashes import differences

app = typer.Typer(no_args_is_help=True, help="Lock, install and check third-party MCP servers.")

Lock = Annotated[Path, typer.Option("--lock", help="The lock file.")]
Names = Annotated[list[str] | None, typer.Argument(help="Some of the lock's servers; none: all.")]
Wall = Annotated[str, typer.Option("--sandbox", help="bwrap, or none for servers you trust.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]


@app.command("add", no_args_is_help=True)
def add(
    command: Annotated[
        list[str] | None, typer.Argument(help="'npx -y PACKAGE@VERSION ARGS' or 'uvx PACKAGE==VERSION ARGS'.")
    ] = None,
    name: Annotated[str | None, typer.Option(help="What to call it; default: from the package.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; secrets as NAME='${NAME}'.")] = None,
    config: Annotated[Path | None, typer.Option(help="A claude_desktop_config.json: all of its servers.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="With --config: only this server; repeatable.")] = None,
    runs_code: Annotated[
        bool, typer.Option("--runs-code", help="It executes what a model wrote: never fork it.")
    ] = False,
    lock: Lock = DEFAULT,
    sandbox: Wall = "bwrap",
) -> None:
    """Lock servers: resolve the packages, install them apart, start each once in the sandbox and note its tools."""
    if (config is None) == (not command):
        raise ConfigError("servers add: give either a command or --config FILE")
    if config is not None:
        found = read_config(config, only or ())
    else:
        words = command or []
        found = [parse_command(words[0] if len(words) == 1 else words, name=name, env=_pairs(env or []))]
    wall = _checked(sandbox)
    for wanted in found:
        server = lock_server(wanted, wall, runs_code=runs_code)
        with editing(lock) as servers:
            servers[server.name] = server
        _say_locked(server)


@app.command("lock")
def relock(names: Names = None, lock: Lock = DEFAULT, sandbox: Wall = "bwrap") -> None:
    """Lock the same versions again: the newest closure, and the tools as they are now. Says what has changed."""
    wall = _checked(sandbox)
    every = read_lock(lock, consistent=False)
    if unknown := sorted(set(names or ()) - every.keys()):
        raise ConfigError(f"lock '{lock}': no server '{unknown[0]}'; have {', '.join(every) or 'none'}")
    for old in [every[name] for name in names or every]:
        parsed = parse_command(old.command, name=old.name, env=old.env)
        server = lock_server(parsed, wall, runs_code=old.runs_code)
        for difference in differences(old.tools, server.tools):
            console.print(f"{old.name}: {difference}", markup=False, highlight=False)
        with editing(lock) as servers:
            servers[server.name] = server
        _say_locked(server)


@app.command("sync")
def sync(names: Names = None, lock: Lock = DEFAULT) -> None:
    """Install what the lock names, so that later runs need no network."""
    for server in _chosen(lock, names):
        there = folder_of(server).is_dir()
        folder = ensure_installed(server)
        console.print(
            f"{server.name}: {'already in' if there else 'installed in'} {folder}", highlight=False, soft_wrap=True
        )


@app.command("list")
def list_all(lock: Lock = DEFAULT, as_json: AsJson = False) -> None:
    """List the servers of the lock."""
    servers = read_lock(lock)
    if as_json:
        print_json({"lock": str(lock), "servers": [_row(server) for server in servers.values()]})
        return
    table = Table(header_style="bold")
    for heading in ("server", "package", "version", "runtime", "MCP library", "tools", "start", "installed"):
        table.add_column(heading)
    for server in servers.values():
        row = _row(server)
        sdk = "-" if server.sdk_major is None else f"{server.sdk_major}.x"
        installed = "yes" if row["installed"] else "on first use"
        cells = (server.name, server.package, server.version, server.runtime, sdk, str(len(server.tools)))
        table.add_row(*cells, how_it_starts(server), installed)
    console.print(table)


@app.command("check")
def check(names: Names = None, lock: Lock = DEFAULT, sandbox: Wall = "bwrap", as_json: AsJson = False) -> None:
    """Compare with the lock: every installed file, the version, and the tools that each server lists in the sandbox.

    Exit code 1 where something differs or a server does not start.
    """
    wall = _checked(sandbox)
    rows = []
    for server in _chosen(lock, names):
        try:
            tools = check_server(server, wall)
        except GymcpError as error:
            rows.append({"server": server.name, "passed": False, "detail": str(error)})
        else:
            detail = f"{server.package} {server.version}: files, version and {len(tools)} tools are as locked"
            rows.append({"server": server.name, "passed": True, "detail": detail})
        if not as_json:
            _say_checked(server.name, bool(rows[-1]["passed"]), str(rows[-1]["detail"]))
    if as_json:
        print_json({"lock": str(lock), "passed": all(row["passed"] for row in rows), "servers": rows})
    if not all(row["passed"] for row in rows):
        raise typer.Exit(1)


def _chosen(lock: Path, names: list[str] | None) -> list[LockedServer]:
    return [locked(lock, name) for name in names] if names else list(read_lock(lock).values())


def _checked(sandbox: str) -> Sandbox:
    wall = get_sandbox(sandbox)
    wall.check()
    return wall


def _pairs(texts: list[str]) -> dict[str, str]:
    if wrong := [text for text in texts if "=" not in text]:
        raise ConfigError(f"--env {wrong[0]}: expected NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _row(server: LockedServer) -> dict[str, object]:
    return {
        "name": server.name,
        "package": server.package,
        "version": server.version,
        "runtime": server.runtime,
        "sdk_major": server.sdk_major,
        "tools": sorted(server.tools),
        "start": how_it_starts(server),
        "installed": folder_of(server).is_dir(),
    }


def _say_locked(server: LockedServer) -> None:
    counts = f"{len(server.packages)} packages, {len(server.tools)} tools: {', '.join(server.tools)}"
    console.print(
        f"{server.name}: locked {server.package} {server.version}, {counts}; start: {how_it_starts(server)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _say_checked(name: str, passed: bool, detail: str) -> None:
    console.print("[green]pass[/]  " if passed else "[red]FAIL[/]  ", end="")
    console.print(f"{name:<20} {detail}", markup=False, highlight=False, soft_wrap=True)
