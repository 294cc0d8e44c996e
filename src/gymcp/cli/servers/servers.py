"""``gymcp servers``: lock third-party MCP servers to the byte, and install each one apart from the others."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import typer
from rich import box
from rich.table import Table

from gymcp.cli.known_names import LOCK_FILE
from gymcp.cli.output import console, print_json
from gymcp.errors import ConfigError, GymcpError
from gymcp.mcp_servers.packages.commands import parse_command, read_config, split_words
from gymcp.mcp_servers.packages.install import ensure_present, is_present, repair_installed
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.locked_server import check_server, describe_start, lock_server, to_install_request
from gymcp.mcp_servers.packages.lockfile import (
    LockedServer,
    Runtime,
    check_name,
    edit_lock,
    read_lock,
    read_locked_server,
)
from gymcp.mcp_servers.packages.own_source.lines import words_of_folder
from gymcp.mcp_servers.packages.own_source.metadata import check_requirements
from gymcp.mcp_servers.packages.pythons.choice import check_version
from gymcp.mcp_servers.sandbox import Sandbox, get_sandbox
from gymcp.mcp_servers.services import Service
from gymcp.mcp_servers.tools.hashes import differences


def add(
    command: list[str] | None,
    *,
    image: str | None,
    path: Path | None,
    more: list[str] | None,
    constraint: list[str] | None,
    python: str | None,
    service: list[str] | None,
    ready: list[str] | None,
    ready_timeout: float,
    include: list[str] | None,
    dev: bool,
    name: str | None,
    env: list[str] | None,
    http: str,
    header: list[str] | None,
    config: str | None,
    only: list[str] | None,
    build: list[str] | None,
    runs_code: bool,
    lock: Path,
    sandbox: str | None,
) -> None:
    """Lock servers: resolve and install the packages, start each server in the sandbox and record its tools."""
    if (config is None) == (not command and image is None and path is None):
        raise ConfigError("servers add: give either a command, --path FOLDER, --image IMAGE, or --config FILE")
    if config is not None and (http or header):
        raise ConfigError("servers add: with --config, a port is a url beside the command, and headers are in the file")
    if config is not None and env:
        raise ConfigError("servers add: with --config, the environment of each server is in the file: env")
    if config is None and only:
        raise ConfigError("servers add: --only names a server of --config FILE, which is missing")
    if config is not None:
        requests = _read_entries(config, only or (), name, lock)
    else:
        values, headers = parse_pairs("--env", env or []), parse_pairs("--header", header or [])
        requests = [make_request(command or [], image, path, lock, name=name, env=values, http=http, headers=headers)]
    requests = [add_packages(wanted, more, constraint, build) for wanted in requests]
    requests = [add_services(choose_python(wanted, python), service, ready, ready_timeout) for wanted in requests]
    requests = [add_source_options(wanted, include, dev=dev) for wanted in requests]
    for wanted in requests if name is None else ():
        refuse_other_server(lock, wanted)
    for wanted in requests:
        backend = sandbox_for(wanted.runtime, sandbox)
        server = lock_server(wanted, backend, runs_code=runs_code)
        with edit_lock(lock) as servers:
            servers[server.name] = server
        _say_locked(server)


def _read_entries(config: str, only: Sequence[str], name: str | None, lock: Path) -> list[InstallRequest]:
    """The servers of a configuration file; one of them may have another name in the lock. Raises ConfigError."""
    requests = read_config(config, only, base=lock.absolute().parent)
    if name is None:
        return requests
    if len(requests) > 1:
        have = ", ".join(wanted.name for wanted in requests)
        raise ConfigError(f"servers add: --name {name}: '{config}' has {len(requests)} servers: {have}; give FILE:NAME")
    return [replace(requests[0], name=check_name(name))]


def relock(names: list[str] | None, *, lock: Path, sandbox: str | None) -> None:
    """Lock the same versions again with the newest dependencies and the current tools; print the changes."""
    _refuse_no_lock(lock)
    every = read_lock(lock, consistent=False)
    if unknown := sorted(set(names or ()) - every.keys()):
        raise ConfigError(f"lock '{lock}': no server '{unknown[0]}'; have {', '.join(every) or 'none'}")
    for old in [every[name] for name in names or every]:
        server = lock_server(to_install_request(old), sandbox_for(old.runtime, sandbox), runs_code=old.runs_code)
        for difference in differences(old.tools, server.tools):
            console.print(f"{old.name}: {difference}", markup=False, highlight=False)
        with edit_lock(lock) as servers:
            servers[server.name] = server
        _say_locked(server)


def sync(names: list[str] | None, *, lock: Path) -> None:
    """Install the servers of the lock, so that later runs need no network; installed ones are verified and repaired."""
    for server in _select(lock, names):
        there = is_present(server)
        fault = repair_installed(server) if there else None
        place = ensure_present(server)
        done = "installed in" if not there else "already in" if fault is None else "installed again in"
        console.print(f"{server.name}: {done} {place}", highlight=False, soft_wrap=True)
        if fault is not None:
            console.print(f"  {fault}", markup=False, highlight=False, soft_wrap=True)


def list_all(*, lock: Path, as_json: bool) -> None:
    """List the servers of the lock."""
    _refuse_no_lock(lock)
    servers = read_lock(lock)
    if as_json:
        print_json({"lock": str(lock), "servers": [_row(server) for server in servers.values()]})
        return
    table = Table(header_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("server", "package", "version", "runtime", "MCP library", "tools", "start", "installed"):
        # a name that is cut off is useless
        table.add_column(heading, overflow="fold", min_width=max(map(len, heading.split())))
    for server in servers.values():
        row = _row(server)
        sdk = "-" if server.sdk_major is None else f"{server.sdk_major}.x"
        installed = "elsewhere" if server.runtime == "remote" else "yes" if row["installed"] else "on first use"
        cells = (server.name, server.package, server.version, server.runtime, sdk, str(len(server.tools)))
        table.add_row(*cells, describe_start(server), installed)
    console.print(table)


def check(names: list[str] | None, *, lock: Path, sandbox: str | None, as_json: bool) -> None:
    """Compare with the lock: every installed file, the version, and the tools that each server lists in the sandbox.

    Exit code 1 if something differs or a server does not start.
    """
    rows = []
    for server in _select(lock, names):
        try:
            tools = check_server(server, sandbox_for(server.runtime, sandbox))
        except GymcpError as error:
            rows.append({"server": server.name, "passed": False, "detail": str(error)})
        else:
            what = f"{server.version}: files, version and" if server.version else "elsewhere:"
            if server.source is not None and server.source.dev:
                what = "(--dev: its source is not compared): packages and"
            detail = f"{server.package} {what} {len(tools)} tools are as locked"
            if server.runtime == "native":
                detail = f"{', '.join(server.command[2:])}: files and version are as locked"
            rows.append({"server": server.name, "passed": True, "detail": detail})
        if not as_json:
            _say_checked(server.name, bool(rows[-1]["passed"]), str(rows[-1]["detail"]))
    if as_json:
        print_json({"lock": str(lock), "passed": all(row["passed"] for row in rows), "servers": rows})
    if not all(row["passed"] for row in rows):
        raise typer.Exit(1)


def _select(lock: Path, names: list[str] | None) -> list[LockedServer]:
    _refuse_no_lock(lock)
    return [read_locked_server(lock, name) for name in names] if names else list(read_lock(lock).values())


def _refuse_no_lock(lock: Path) -> None:
    """Raise ConfigError if no lock was named and this folder has none."""
    if lock == Path(LOCK_FILE) and not lock.exists():
        raise ConfigError(
            f"lock '{lock}': not found in this folder; make it with: gymcp servers add 'uvx PACKAGE==VERSION'; or name"
            " another: --lock FILE"
        )


def make_request(
    command: list[str],
    image: str | None,
    path: Path | None,
    lock: Path,
    *,
    name: str | None = None,
    env: Mapping[str, str] | None = None,
    http: str = "",
    headers: Mapping[str, str] | None = None,
) -> InstallRequest:
    """The server to lock, from a command line, a folder and a command line, or an image with arguments.

    Paths of the user are relative to the working folder, and become relative to the lock.
    """
    words: str | Sequence[str] = command[0] if len(command) == 1 and image is None else command
    if path is not None:
        if image is not None:
            raise ConfigError("give either --path FOLDER or --image IMAGE")
        words = words_of_folder(f"server '{name}'" if name else "server", path, split_words(words))
    if image is not None:
        if image.startswith((".", "/")) or Path(image).is_file():
            image = os.path.relpath(image, lock.absolute().parent)
            image = image if image.startswith(".") else f"./{image}"
        words = ["docker", "run", "-i", "--rm", image, *command]
    base = lock.absolute().parent
    return parse_command(words, name=name, env=env, http=http, headers=headers, base=base, start=Path.cwd())


def add_packages(
    wanted: InstallRequest, more: list[str] | None, constraint: list[str] | None, build: list[str] | None
) -> InstallRequest:
    """The request with the options ``--with``, ``--constraint`` and ``--build``. Raises ConfigError."""
    if (more or constraint) and wanted.runtime != "python":
        raise ConfigError(f"server '{wanted.name}': --with and --constraint are for servers in Python")
    return replace(
        wanted,
        added=(*wanted.added, *check_requirements("--with", more or ())),
        constraints=check_requirements("--constraint", constraint or ()),
        build=tuple(build or ()),
    )


def choose_python(wanted: InstallRequest, version: str | None) -> InstallRequest:
    """The request with the option ``--python``. Raises ConfigError if it is no server in Python."""
    if version is None:
        return wanted
    if wanted.runtime != "python":
        raise ConfigError(f"server '{wanted.name}': --python is for servers in Python")
    return replace(wanted, python=check_version(f"server '{wanted.name}'", version))


def add_services(
    wanted: InstallRequest, lines: list[str] | None, ready: list[str] | None, timeout_s: float
) -> InstallRequest:
    """The request with the options ``--service``, ``--ready`` and ``--ready-timeout``. Raises ConfigError."""
    if len(lines or ()) != len(ready or ()):
        raise ConfigError(
            f"server '{wanted.name}': {len(lines or ())} --service and {len(ready or ())} --ready: each service needs a"
            " check that it is ready: --ready tcp:PORT, file:PATH or command:LINE"
        )
    if lines and wanted.runtime in ("native", "remote"):
        raise ConfigError(f"server '{wanted.name}': --service is for servers that the lock starts here")
    services = (Service.parse(line, check, timeout_s) for line, check in zip(lines or (), ready or (), strict=True))
    return replace(wanted, services=tuple(services))


def add_source_options(wanted: InstallRequest, include: list[str] | None, *, dev: bool) -> InstallRequest:
    """The request with the options ``--include`` and ``--dev``. Raises ConfigError if it has no source of one's own."""
    if (include or dev) and wanted.own is None:
        raise ConfigError(f"server '{wanted.name}': --include and --dev are for a server of your own: python FILE.py")
    return replace(wanted, include=tuple(include or ()), dev=dev)


@functools.cache
def sandbox_for(runtime: Runtime, sandbox: str | None) -> Sandbox:
    """Sandbox for servers of that kind, ready to use. Raises ConfigError for images in another sandbox than docker."""
    if runtime == "image" and sandbox not in (None, "docker"):
        raise ConfigError(f"--sandbox {sandbox}: servers from images need --sandbox docker")
    backend = get_sandbox(sandbox or ("docker" if runtime == "image" else "bwrap"))
    backend.check()
    return backend


def refuse_other_server(
    lock: Path, wanted: InstallRequest, *, option: str = "--name", replaceable: bool = True
) -> None:
    """Raise ConfigError if the lock has another server under that name; another version of the same server is fine.

    `replaceable`: the message says that the option also puts the new server in the other's place.
    """
    there = read_lock(lock, consistent=False).get(wanted.name) if lock.exists() else None
    if there is not None and _identify(to_install_request(there)) != _identify(wanted):
        raise ConfigError(
            f"lock '{lock}': has another server '{wanted.name}': {' '.join(there.command)}; call this one something "
            f"else with {option} NAME" + (", or name it so to have it in the other's place" if replaceable else "")
        )


def _identify(wanted: InstallRequest) -> tuple[str, ...]:
    return (wanted.runtime, wanted.package, wanted.program or "", wanted.url)


def parse_pairs(option: str, texts: list[str]) -> dict[str, str]:
    """Name -> value, from texts NAME=VALUE. Raises ConfigError."""
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
    if server.runtime == "native":
        counts = f"{len(server.packages)} {noun} of a native server: {', '.join(server.command[2:])}"
    console.print(
        f"{server.name}: locked {server.package} {server.version}, {counts}; start: {describe_start(server)}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _say_checked(name: str, passed: bool, detail: str) -> None:
    console.print("pass" if passed else "FAIL", style="green" if passed else "red", end="")
    console.print(f"  {name:<20} {detail}", markup=False, highlight=False, soft_wrap=True)
