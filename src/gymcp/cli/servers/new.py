"""``gymcp new``: write an environment file for a server, ready to run, and check it if asked."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from pathlib import Path

import typer

from gymcp.atomic import write_atomically
from gymcp.cli.output import console, in_one_line
from gymcp.cli.progress import Progress, format_time
from gymcp.cli.servers.check import check_environment
from gymcp.cli.servers.environment_file import next_commands, write_text
from gymcp.cli.servers.scaffold import write_scaffold
from gymcp.cli.servers.servers import (
    add_packages,
    add_services,
    add_source_options,
    choose_python,
    make_request,
    parse_pairs,
    refuse_other_server,
    sandbox_for,
)
from gymcp.cli.servers.state_kinds import describe_state
from gymcp.cli.servers.trial import CALL_LIMIT, Trial, try_out
from gymcp.cli.servers.verdicts import CheckResults, print_verdicts
from gymcp.cli.summary_table import network_line
from gymcp.errors import ConfigError
from gymcp.mcp_servers.packages.commands import read_entry
from gymcp.mcp_servers.packages.install_request import InstallRequest
from gymcp.mcp_servers.packages.locked_server import lock_server
from gymcp.mcp_servers.packages.lockfile import DEFAULT_LOCK, MAX_NAME_CHARS, LockedServer, check_name, edit_lock
from gymcp.mcp_servers.sandbox import Sandbox

TASKS, CONCURRENCY = 60, 8
"""Most tasks that `--check` plays, and episodes at a time; as `gymcp check` by default."""

_READ_ONLY = "Read-only file system"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """Files that were written, in words, and the next two commands to type."""

    lines: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    next_commands: tuple[str, str]


def execute(
    name: str,
    *,
    server: str | None,
    config: str | None,
    check: bool,
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
    runs_code: bool,
    server_name: str | None,
    build: list[str] | None,
    env: list[str] | None,
    http: str,
    header: list[str] | None,
    folder: Path,
    sandbox: str | None,
) -> None:
    """Write an environment file for a server: its tools, a first task that works, and a grader.

    With `check`, the exit code is 1 if a check fails; the files stay.
    """
    file = folder / f"{_check_name(name)}.py"
    if file.exists():
        raise ConfigError(f"new: {file} is there already; choose another name, or remove it")
    if not folder.is_dir():
        raise ConfigError(f"new: folder {folder} is not there; make it first")
    wanted, lock = None, folder / DEFAULT_LOCK
    if server is None and path is None and image is None and config is None:
        words = (more, constraint, python, service, ready, include, build, env, header, server_name, http)
        _refuse_server_options(*words, dev, runs_code)
    else:
        wanted = _find_server(server, config, image, path, lock, server_name, http, header, env)
        wanted = choose_python(add_packages(wanted, more, constraint, build), python)
        wanted = add_source_options(add_services(wanted, service, ready, ready_timeout), include, dev=dev)
        refuse_other_server(lock, wanted, option="--server-name", replaceable=False)
        if check:
            _refuse_check_elsewhere(wanted, file)
    _write_and_check(name, file, wanted, sandbox, runs_code=runs_code, check=check)


def _find_server(
    server: str | None,
    config: str | None,
    image: str | None,
    path: Path | None,
    lock: Path,
    name: str | None,
    http: str,
    header: list[str] | None,
    env: list[str] | None,
) -> InstallRequest:
    """The server to lock, without the options for its packages. Raises ConfigError."""
    if config is not None:
        if server or image or path or http or header or env:
            others = "--server, --path, --image, --http, --header and --env"
            raise ConfigError(f"new: --config FILE:NAME names the server: leave out {others}")
        wanted = read_entry(config, base=lock.absolute().parent)
        return replace(wanted, name=check_name(name)) if name else wanted
    if server is not None and image is not None:
        raise ConfigError("new: give either --server LINE, --path FOLDER or --image IMAGE")
    values, headers = parse_pairs("--env", env or []), parse_pairs("--header", header or [])
    words = [server] if server else []
    return make_request(words, image, path, lock, name=name, env=values, http=http, headers=headers)


def _refuse_server_options(*given: list[str] | str | bool | None) -> None:
    """Raise ConfigError if there are options of a server, but no server."""
    if any(given):
        raise ConfigError(
            "new: has options of a server, but no server: give --server LINE, --path FOLDER or --image NAME"
        )


def _refuse_check_elsewhere(wanted: InstallRequest, file: Path) -> None:
    """Raise ConfigError for a server that runs elsewhere: a check plays its answers from a cassette."""
    if wanted.runtime == "remote":
        first, second = next_commands(wanted.runtime, str(file), "bwrap")
        raise ConfigError(
            f"new: --check: server '{wanted.name}' runs elsewhere, so its answers are recorded first: leave out "
            f"--check, then run: {first}; and: {second}"
        )


def _write_and_check(
    name: str, file: Path, wanted: InstallRequest | None, sandbox: str | None, *, runs_code: bool, check: bool
) -> None:
    """Write the files, check them if asked, and print one summary; it is also printed if the check breaks off.

    Raises typer.Exit if a check fails.
    """
    written, results, began = None, None, time.monotonic()
    runtime = "python" if wanted is None else wanted.runtime
    try:
        with Progress(f"new {name}") as progress:
            if wanted is None:
                lines = write_scaffold(name, file)
                written = _Written(lines=lines, next_commands=next_commands(runtime, str(file), sandbox or "bwrap"))
            else:
                written = _write_over_server(name, file, wanted, sandbox_for(runtime, sandbox), runs_code, progress)
            if check:
                backend = sandbox_for(runtime, sandbox)
                results = check_environment(str(file), backend, progress, "*", TASKS, CONCURRENCY)
    finally:
        if written is not None:
            _print_summary(written, results, file, time.monotonic() - began)
    if results is not None and not results.passed:
        raise typer.Exit(1)


def _write_over_server(
    name: str, file: Path, wanted: InstallRequest, backend: Sandbox, runs_code: bool, progress: Progress
) -> _Written:
    """Lock, install and try the server; then write the lock and the environment file."""
    progress.show(f"{name} · packages of the server, and its first start")
    entry = lock_server(wanted, backend, runs_code=runs_code)
    progress.show(f"{name} · trial calls")
    trial = asyncio.run(try_out(entry, backend))
    lock = file.with_name(str(DEFAULT_LOCK))
    _write(name, file, entry, trial, backend)
    state = f"state: {describe_state(trial.state.state)}: {trial.state.reason}"
    return _Written(
        lines=(f"wrote {file} and {lock}: {len(trial.tools)} tools, one task", state),
        warnings=tuple(filter(None, (_describe_failure(trial, file), network_line(trial.offline)))),
        next_commands=next_commands(entry.runtime, str(file), backend.name),
    )


def _describe_failure(trial: Trial, file: Path) -> str:
    """Line on a tool whose trial calls failed, and what to do; empty if its arguments may be the reason."""
    advice = {
        _READ_ONLY: "the server's own files are read-only in the sandbox: let it write under the working directory",
        CALL_LIMIT: "the call of a task may take longer: EpisodeLimits(call_timeout_s=...) of the environment",
    }
    for words, what_to_do in advice.items():
        for tool, error in trial.errors.items():
            if words in error:
                return f"trial call of {tool} failed: {error}; {what_to_do}"
    if trial.succeeded is not False or not trial.errors:
        return ""
    tool, error = next(iter(trial.errors.items()))
    return f"trial call of {tool} failed: {error}; write a call that succeeds in place of CALL in {file}"


def _write(name: str, file: Path, entry: LockedServer, found: Trial, backend: Sandbox) -> None:
    """Write the lock entry and the environment file. Raises ConfigError if the lock got another such server."""
    lock = file.with_name(str(DEFAULT_LOCK))
    with edit_lock(lock) as servers:
        if entry.name in servers and servers[entry.name].command != entry.command:
            there = " ".join(servers[entry.name].command)
            raise ConfigError(
                f"new: {lock} has a server '{entry.name}' already: {there}; choose another --server-name or --dir"
            )
        servers[entry.name] = entry
    write_atomically(file, write_text(name, file, entry, found, backend.name).encode())


def _print_summary(written: _Written, results: CheckResults | None, file: Path, seconds: float) -> None:
    """Print what was written, the verdicts if there are any, and the next command."""
    for line in written.lines:
        console.print(in_one_line(line), highlight=False, soft_wrap=True)
    for warning in written.warnings:
        console.print(in_one_line(warning), highlight=False, soft_wrap=True, style="yellow")
    first, second = written.next_commands
    if results is not None:
        print_verdicts(results)
        failed = sum(not verdict.passed for verdict in results.verdicts)
        ended = f"{failed} of {len(results.verdicts)} checks failed" if failed else "all checks passed"
        console.print(f"{ended}, {format_time(seconds)} after the start", highlight=False)
        first = f"mend {file}, then: {first}" if failed else second
    console.print(f"next: {first}", style="dim", highlight=False, soft_wrap=True)


def _check_name(name: str) -> str:
    """The environment's name, if it can be a file name. Raises ConfigError."""
    try:
        return check_name(name)
    except ConfigError as error:
        raise ConfigError(f"new: name {name!r}: letters, digits, - and _ only, at most {MAX_NAME_CHARS}") from error
