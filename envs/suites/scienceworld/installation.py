"""ScienceWorld's simulator from its pinned wheel, and the servers that run beside it in their sandbox.

The jar is mounted alone; of the wheel's Python code nothing is used. The simulator is a service of each server: its
gateway listens on the sandbox's own loopback, which nothing else can reach.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from gymcp.atomic import cache_errors
from gymcp.envs.suites.scienceworld.java import LAUNCHER, find_java
from gymcp.envs.suites.upstream.file_layout import fingerprint
from gymcp.envs.suites.upstream.verified_cache import verified_folder
from gymcp.envs.suites.upstream.wheels import Wheel, fetch_wheel, unpack_wheel
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.programs.scienceworld.gateway import PORT
from gymcp.mcp_servers.sandbox import Limits, Mount
from gymcp.mcp_servers.services import Service
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.paths import gymcp_home

SCIENCEWORLD = Wheel(
    name="scienceworld",
    version="1.2.3",
    sha256="e9737b9d099bfaad90ef053ad6ac1d795e2063ed320efdfc0e9d9c8b5bebf419",
)
FOLDER_REVISION = 1
"""Part of the folder's name, raised with every change of how it is made."""
INSIDE = PurePosixPath("/srv/scienceworld")
JAR = "scienceworld.jar"
_MEMBERS = {
    "scienceworld/scienceworld.jar": JAR,
    "scienceworld-1.2.3.dist-info/licenses/LICENSE": "LICENSE",
}

_PROGRAMS = "gymcp.mcp_servers.programs.scienceworld"
SERVER = f"{_PROGRAMS}.server"
MAKER = f"{_PROGRAMS}.maker"
MODULES = tuple(f"{_PROGRAMS}.{name}" for name in ("gateway", "world_tree", "simulator"))
_MAIN_CLASS = "scienceworld.runtime.pythonapi.PythonInterface"
HEAP_MB = 256
MEMORY_MB = 768
"""Memory of the whole sandbox: the heap, what the Java runtime needs beside it, and three small Python processes."""
READY_TIMEOUT_S = 60.0
PRESTARTED_SERVERS = 2
"""Servers that are started ahead: starting the simulator takes a second."""
OPTIONS = (
    *("-XX:+UnlockExperimentalVMOptions", "-XX:hashCode=2"),
    *("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", f"-Xmx{HEAP_MB}m"),
)
"""Options of the Java runtime. ``hashCode=2``: all identity hashes are equal. Else they are drawn at random, and the
simulator goes through its sets of objects in another order each time, so the same actions lead to other worlds."""


@cache_errors()
def install_scienceworld() -> Path:
    """The folder with the simulator's jar, fetched if it is missing, and unchanged since then.

    Raises UsageError if the wheel cannot be had, IntegrityError for a wheel with another hash, InstallDrift for a
    changed folder.
    """

    def fill(folder: Path) -> None:
        unpack_wheel(fetch_wheel(SCIENCEWORLD, gymcp_home() / "wheels"), folder, _MEMBERS.get)

    return verified_folder("scienceworld", _folder(), fill)


def is_installed() -> bool:
    """True if nothing is left to fetch."""
    return _folder().is_dir()


def servers() -> tuple[ServerSpec, ...]:
    """The one server of every task. Raises UsageError if there is no Java runtime."""
    return (replace(with_simulator("scienceworld", SERVER), warm_pool_size=PRESTARTED_SERVERS),)


def with_simulator(name: str, program: str, modules: Sequence[str] = MODULES) -> ServerSpec:
    """The spec of a program that talks to a simulator of its own. Raises UsageError if there is no Java runtime."""
    java = find_java()  # first: nothing is fetched for a machine that cannot use it
    jar = Mount(source=install_scienceworld(), target=INSIDE)
    limits = Limits(memory_mb=MEMORY_MB)
    server = native_server(name, program, modules=modules, mounts=(jar, *java.mounts()), limits=limits)
    return replace(server, services=(_make_simulator(),))


@functools.cache
def records_fingerprint() -> str:
    """Hash of everything that decides what a task's record holds."""
    return fingerprint(f"{SCIENCEWORLD.sha256} {OPTIONS}".encode(), MAKER, f"{_PROGRAMS}.simulator")


def _make_simulator() -> Service:
    command = f"{LAUNCHER} {' '.join(OPTIONS)} -cp {INSIDE / JAR} {_MAIN_CLASS} {PORT}"
    return Service(
        name="simulator",
        argv=("/bin/sh", "-c", f"cd /tmp && exec {command} >/dev/null"),  # it prints some kilobytes for each action
        ready=f"tcp:{PORT}",
        ready_timeout_s=READY_TIMEOUT_S,
    )


def _folder() -> Path:
    return gymcp_home() / "suites" / "scienceworld" / f"{SCIENCEWORLD.version}-{FOLDER_REVISION}"
