"""``gymcp servers``: third-party MCP servers, locked to the byte and installed apart from each other."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from gymcp.cli.output import console, print_json
from gymcp.errors import ConfigError, GymcpError
from gymcp.mcp_servers.packages.commands import InstallRequest, parse_command, read_config
from gymcp.mcp_servers.packages.install import ensure_present, is_present, repair_installed
from gymcp.mcp_servers.packages.locked_server import check_server, describe_start, lock_server, to_install_request
from gymcp.mcp_servers.packages.lockfile import (
    DEFAULT_LOCK,
    LockedServer,
    Runtime,
    edit_lock,
    read_lock,
    read_locked_server,
)
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.tools.hashes import differences

app = typer.Typer(no_args_is_help=True, help="Lock, install and check third-party MCP servers.")

Lock = Annotated[Path, typer.Option("--lock", help="The lock file.")]
Names = Annotated[list[str] | None, typer.Argument(help="Some of the lock's servers; none: all.")]
Wall = Annotated[
    str | None,
    typer.Option("--sandbox", help="Default: bwrap, and docker for images. none: for servers you trust."),
]
Image = Annotated[
    str | None, typer.Option("--image", help="A name that the engine or a registry has, or the path of a Dockerfile.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
Build = Annotated[
    list[str] | None,
    typer.Option("--build", help="A package that may be built, in a sandbox, where it must be; repeatable."),
]


@app.command("add", no_args_is_help=True)
def add(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            help="'npx -y PACKAGE@VERSION ARGS', 'uvx PACKAGE==VERSION ARGS', or a URL; with --image its ARGS."
        ),
    ] = None,
    image: Image = None,
    name: Annotated[str | None, typer.Option(help="What to call it; default: from the package or the host.")] = None,
    env: Annotated[list[str] | None, typer.Option(help="NAME=VALUE; secrets as NAME='${NAME}'.")] = None,
    http: Annotated[str, typer.Option(help="PORT or PORT/PATH of a command that speaks only streamable HTTP.")] = "",
    header: Annotated[list[str] | None, typer.Option(help="Of a URL: NAME=VALUE; secrets as NAME='${NAME}'.")] = None,
    config: Annotated[Path | None, typer.Option(help="A claude_desktop_config.json: all of its servers.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="With --config: only this server; repeatable.")] = None,
    build: Build = None,
    runs_code: Annotated[
        bool, typer.Option("--runs-code", help="It executes what a model wrote: never fork it.")
    ] = False,
    lock: Lock = DEFAULT_LOCK,
    sandbox: Wall = None,
) -> None:
    """Lock servers: resolve the packages, install them apart, start each once in the sandbox and note its tools."""
    if (config is None) == (not command and image is None):
        raise ConfigError("servers add: give either a command, --image IMAGE, or --config FILE")
    if config is not None and (http or header):
        raise ConfigError("servers add: with --config, a port is a url beside the command, and headers are in the file")
    if config is not None:
        found = read_config(config, only or ())
    else:
        values, headers = pairs("--env", env or []), pairs("--header", header or [])
        found = [wanted_server(command or [], image, lock, name=name, env=values, http=http, headers=headers)]
    for wanted in found:
        if config is None and name is None:
            refuse_other(lock, wanted)
        wall = wall_for(wanted.runtime, sandbox)
        server = lock_server(replace(wanted, build=tuple(build or ())), wall, runs_code=runs_code)
        with edit_lock(lock) as servers:
            servers[server.name] = server
        _say_locked(server)


@app.command("lock")
def relock(names: Names = None, lock: Lock = DEFAULT_LOCK, sandbox: Wall = None) -> None:
    """Lock the same versions again: the newest closure, and the tools as they are now. Says what has changed."""
    every = read_lock(lock, consistent=False)
    if unknown := sorted(set(names or ()) - every.keys()):
        raise ConfigError(f"lock '{lock}': no server '{unknown[0]}'; have {', '.join(every) or 'none'}")
    for old in [every[name] for name in names or every]:
        server = lock_server(to_install_request(old), wall_for(old.runtime, sandbox), runs_code=old.runs_code)
        for difference in differences(old.tools, server.tools):
            console.print(f"{old.name}: {difference}", markup=False, highlight=False)
        with edit_lock(lock) as servers:
            servers[server.name] = server
        _say_locked(server)


@app.command("sync")
def sync(names: Names = None, lock: Lock = DEFAULT_LOCK) -> None:
    """Install what the lock names, so that later runs need no network; what is there is hashed, or mended."""
    for server in _chosen(lock, names):
        there = is_present(server)
        fault = repair_installed(server) if there else None
        place = ensure_present(server)
        done = "installed in" if not there else "already in" if fault is None else "installed again in"
        console.print(f"{server.name}: {done} {place}", highlight=False, soft_wrap=True)
        if fault is not None:
            console.print(f"  {fault}", markup=False, highlight=False, soft_wrap=True)


@app.command("list")
def list_all(lock: Lock = DEFAULT_LOCK, as_json: AsJson = False) -> None:
    """List the servers of the lock."""
    servers = read_lock(lock)
    if as_json:
        print_json({"lock": str(lock), "servers": [_row(server) for server in servers.values()]})
        return
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("server", "package", "version", "runtime", "MCP library", "tools", "start", "installed"):
        # a name that is cut off is of no use
        table.add_column(heading, overflow="fold", min_width=max(map(len, heading.split())))
    for server in servers.values():
        row = _row(server)
        sdk = "-" if server.sdk_major is None else f"{server.sdk_major}.x"
        installed = "elsewhere" if server.runtime == "remote" else "yes" if row["installed"] else "on first use"
        cells = (server.name, server.package, server.version, server.runtime, sdk, str(len(server.tools)))
        table.add_row(*cells, describe_start(server), installed)
    console.print(table)


@app.command("check")
def check(names: Names = None, lock: Lock = DEFAULT_LOCK, sandbox: Wall = None, as_json: AsJson = False) -> None:
    """Compare with the lock: every installed file, the version, and the tools that each server lists in the sandbox.

    Exit code 1 where something differs or a server does not start.
    """
    rows = []
    for server in _chosen(lock, names):
        try:
            tools = check_server(server, wall_for(server.runtime, sandbox))
        except GymcpError as error:
            rows.append({"server": server.name, "passed": False, "detail": str(error)})
        else:
            what = f"{server.version}: files, version and" if server.version else "elsewhere:"
            detail = f"{server.package} {what} {len(tools)} tools are as locked"
            rows.append({"server": server.name, "passed": True, "detail": detail})
        if not as_json:
            _say_checked(server.name, bool(rows[-1]["passed"]), str(rows[-1]["detail"]))
    if as_json:
        print_json({"lock": str(lock), "passed": all(row["passed"] for row in rows), "servers": rows})
    if not all(row["passed"] for row in rows):
        raise typer.Exit(1)


def _chosen(lock: Path, names: list[str] | None) -> list[LockedServer]:
    return [read_locked_server(lock, name) for name in names] if names else list(read_lock(lock).values())


def wanted_server(
    command: list[str],
    image: str | None,
    lock: Path,
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    http: str = "",
    headers: Mapping[str, str] | None = None,
) -> InstallRequest:
    """From a command line, or an image with arguments; the path of a Dockerfile is kept as it is from the lock."""
    words: str | list[str] = command[0] if len(command) == 1 and image is None else command
    if image is not None:
        if image.startswith((".", "/")) or Path(image).is_file():
            image = os.path.relpath(image, lock.absolute().parent)
            image = image if image.startswith(".") else f"./{image}"
        words = ["docker", "run", "-i", "--rm", image, *command]
    return parse_command(words, name=name, env=env, http=http, headers=headers, base=lock.absolute().parent)


@functools.cache
def wall_for(runtime: Runtime, sandbox: str | None) -> Sandbox:
    """Where servers of that kind run, ready to use. Raises ConfigError for images in any other sandbox than docker."""
    if runtime == "image" and sandbox not in (None, "docker"):
        raise ConfigError(f"--sandbox {sandbox}: servers from images need --sandbox docker")
    wall = get_sandbox(sandbox or ("docker" if runtime == "image" else "bwrap"))
    wall.check()
    return wall


def refuse_other(lock: Path, wanted: InstallRequest) -> None:
    """Raises ConfigError where the lock has another server, not only another version, under the name chosen for it."""
    there = read_lock(lock, consistent=False).get(wanted.name) if lock.exists() else None
    if there is not None and _which(to_install_request(there)) != _which(wanted):
        raise ConfigError(
            f"lock '{lock}': has another server '{wanted.name}': {' '.join(there.command)}; call this one something "
            "else with --name NAME, or name it so to have it in the other's place"
        )


def _which(wanted: InstallRequest) -> tuple[str, ...]:
    return (wanted.runtime, wanted.package, wanted.program or "", wanted.url)


def pairs(option: str, texts: list[str]) -> dict[str, str]:
    """From NAME=VALUE. Raises ConfigError."""
    if wrong := [text for text in texts if "=" not in text]:
        raise ConfigError(f"{option} {wrong[0]}: expected NAME=VALUE")
    return {name: value for name, _, value in (text.partition("=") for text in texts)}


def _row(server: LockedServer) -> dict[str, object]:
    return {
        "name": server.name,
        "package": server.package,
        "version": server.version,
        "runtime": server.runtime,
        "sdk_major": server.sdk_major,
        "tools": sorted(server.tools),
        "installed": is_present(server),
        "start": describe_start(server),
    }


def _say_locked(server: LockedServer) -> None:
    noun = "image" if server.runtime == "image" else "packages"
    counts = f"{len(server.packages)} {noun}, {len(server.tools)} tools: {', '.join(server.tools)}"
    console.print(
        f"{server.name}: locked {server.package} {server.version}, {counts}; start: {describe_start(server)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _say_checked(name: str, passed: bool, detail: str) -> None:
    console.print("pass" if passed else "FAIL", style="green" if passed else "red", end="")
    console.print(f"  {name:<20} {detail}", markup=False, highlight=False, soft_wrap=True)
