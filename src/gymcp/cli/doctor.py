"""``gymcp doctor``: what works on this machine, and what to install for the rest."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import typer

from gymcp import __version__
from gymcp.cli.output import console, print_json
from gymcp.errors import EnvInfraError, UsageError
from gymcp.mcp_servers.leftovers import find_leftovers
from gymcp.mcp_servers.sandbox import get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.cgroup import usable_hierarchy
from gymcp.mcp_servers.sandbox.docker.images import base_image, exists
from gymcp.mcp_servers.worlds.workspace import describe_workspaces
from gymcp.paths import gymcp_home


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: str
    works: bool
    detail: str


def command(
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")] = False,
) -> None:
    """Say what works on this machine, and what to install for the rest. Exit code 1 where something is missing."""
    findings = [
        Finding(what="gymcp", works=True, detail=f"{__version__} on Python {platform.python_version()}"),
        _look("bubblewrap", _bubblewrap),
        Finding(what="docker", works=True, detail=_docker()),
        _look("interpreter", lambda: f"{interpreter().path} inside the sandbox"),
        _look("limits", _limits),
        _look("workspaces", describe_workspaces),
        _look("cache", _cache),
        _look("leftovers", lambda: f"{len(find_leftovers())} of dead runs (remove with: gymcp clean)"),
    ]
    if as_json:
        print_json({"findings": [{"what": f.what, "works": f.works, "detail": f.detail} for f in findings]})
    else:
        for finding in findings:
            console.print("[green]ok[/]  " if finding.works else "[red]no[/]  ", end="")
            console.print(f"{finding.what:<12}{finding.detail}", markup=False, highlight=False, soft_wrap=True)
    if not all(finding.works for finding in findings):
        sys.exit(1)


def _look(what: str, how: Callable[[], str]) -> Finding:
    try:
        return Finding(what=what, works=True, detail=how())
    except (UsageError, OSError) as error:
        return Finding(what=what, works=False, detail=str(error))


def _bubblewrap() -> str:
    get_sandbox("bwrap").check()
    return "a sandbox was started"


def _docker() -> str:
    """Never a failure: bubblewrap is enough for every server that is not an image."""
    try:
        get_sandbox("docker").check()
        ready = exists(base_image())
    except (UsageError, EnvInfraError) as error:
        return f"optional, not usable here: {error}"
    if not ready:
        return "optional: an engine answers; before --sandbox docker, make its base image with: gymcp sandbox build"
    return f"an engine answers, and has {base_image()}"


def _limits() -> str:
    if usable_hierarchy() is None:
        return "memory and processes are held by a watchdog (no control group can be made here)"
    return "memory and processes are held by control groups"


def _cache() -> str:
    home = gymcp_home()
    home.mkdir(parents=True, exist_ok=True)
    if not os.access(home, os.W_OK):
        raise PermissionError(f"{home} cannot be written; set GYMCP_HOME to a folder that can")
    return str(home)
