"""AgentDojo v1.2.2: 97 user tasks over 74 tools in four suites, and 35 goals of an attacker, from upstream's own wheel.

Nothing of upstream is in this repository. The wheel is fetched once and split: ``server/`` holds what may be mounted in
a server's sandbox (tools and models of worlds), ``private/`` the whole package, for the grader's sandbox alone. What
both import lies in a virtualenv of its own, made of the wheels that `agentdojo.lock` names by hash.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path, PurePosixPath

from gymcp.cache import cache_errors
from gymcp.envs.suites.agentdojo.tasks import task_id, to_task
from gymcp.envs.suites.upstream.packages import locked_packages, packages_folder
from gymcp.envs.suites.upstream.run_once import run_to_end
from gymcp.envs.suites.upstream.suite_files import SuiteFiles, fingerprint, sandbox_for
from gymcp.envs.suites.upstream.verified_cache import keep, kept, kept_folder
from gymcp.envs.suites.upstream.wheels import Wheel, fetch_wheel, unpack
from gymcp.errors import IntegrityError
from gymcp.mcp_servers.native.server import native_server, precompile
from gymcp.mcp_servers.sandbox import Limits, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.paths import gymcp_home
from gymcp.types import Json, Suite

AGENTDOJO = Wheel(
    name="agentdojo",
    version="0.1.35",
    sha256="364bea4219716b716bf639f504d195943f7f6a5535d312ca41d7098704a2affd",
)
LOCK = Path(__file__).with_name("agentdojo.lock")
PROGRAM = "gymcp.mcp_servers.programs.agentdojo.server"
JUDGE = "gymcp.mcp_servers.programs.agentdojo.judge"
REVISION = 1
"""Of what we make of upstream's tasks: bumped with every change that a task's record shows."""
FOLDERS = 2
"""Of how the folder is made."""
TASKS, GOALS = 97, 35
CODE, LIBRARIES = PurePosixPath("/srv/agentdojo"), PurePosixPath("/srv/libraries")
"""Where upstream's package, and what it imports, appear in a sandbox."""

_TOOLS = "agentdojo/default_suites/v1"
_SUITES = ("workspace", "travel", "banking", "slack")
_MOUNTED = frozenset(
    ["agentdojo/functions_runtime.py", "agentdojo/strenum.py", f"{_TOOLS}/tools/__init__.py"]
    + [f"{_TOOLS}/{suite}/task_suite.py" for suite in _SUITES]
    + [
        f"{_TOOLS}/tools/{name}.py"
        for name in (
            *("banking_client", "calendar_client", "cloud_drive_client", "email_client", "file_reader", "slack"),
            *("travel_booking_client", "types", "user_account", "web"),
        )
    ]
)


@cache_errors()
def install_agentdojo(home: Path | None = None, *, sandbox: Sandbox | None = None) -> SuiteFiles:
    """The suite's files in gymcp's cache, as they were installed. What is complete is used without network.

    Upstream's code runs once over the gold, for the tasks: in `sandbox`, else in bubblewrap. Raises SandboxUnavailable
    where that is not there, IntegrityError for files with another hash or tasks that are not those of this version,
    UsageError where something cannot be had.
    """
    home = home or gymcp_home()
    files = _files(home)
    wall = sandbox_for("agentdojo", "upstream's code runs once, for the tasks", sandbox, files)
    locked_packages("agentdojo", LOCK, home)

    def make(folder: Path) -> None:
        wheel = fetch_wheel(AGENTDOJO, home / "wheels")
        unpack(wheel, folder / "server", lambda name: name if name in _MOUNTED else None)
        unpack(wheel, folder / "private", _of_package)
        precompile(folder / "server")

    kept_folder("agentdojo", files.root, make)
    if files.tasks.is_file():
        return files
    suites = json.loads(run_to_end(judge_server(files), wall, "", "--tasks"))
    counts = tuple(sum(len(suite[part]) for suite in suites.values()) for part in ("user_tasks", "injection_tasks"))
    if counts != (TASKS, GOALS):
        raise IntegrityError(f"suite 'agentdojo': has {counts[0]} tasks and {counts[1]} goals, not {TASKS} and {GOALS}")
    keep(files.tasks, json.dumps(suites).encode())
    return files


def is_installed(home: Path | None = None) -> bool:
    """True where nothing is left to fetch or to compute."""
    return _files(home or gymcp_home()).are_complete


def read_suites() -> dict[str, Json]:
    """What upstream's code says of each suite, installed where it is not yet: world, vectors, tasks, goals."""
    return _read(install_agentdojo().tasks)


def load_suite() -> Suite:
    """All 97 user tasks without an attack, installed where they are not yet."""
    return Suite(
        name="agentdojo",
        version=f"{AGENTDOJO.version}+{REVISION}",
        tasks=tuple(to_task(name, suite, row) for name, suite in read_suites().items() for row in suite["user_tasks"]),
        source=f"{AGENTDOJO.name}=={AGENTDOJO.version}",
        pass_at_once=frozenset(
            task_id(name, row["id"])
            for name, suite in read_suites().items()
            for row in suite["user_tasks"]
            if row["passes_at_once"]
        ),
    )


def servers() -> tuple[ServerSpec, ...]:
    """The one server of every task; `Task.initial_state` says which suite's tools it has."""
    return (agentdojo_server(install_agentdojo()),)


def agentdojo_server(files: SuiteFiles) -> ServerSpec:
    mounts = files.mounts(files.server, CODE, LIBRARIES)
    return native_server("agentdojo", PROGRAM, mounts=mounts, python_path=[CODE, LIBRARIES], start="fork")


def judge_server(files: SuiteFiles) -> ServerSpec:
    """Upstream's graders: no server of an episode, but started like one."""
    mounts = files.mounts(files.private, CODE, LIBRARIES)
    limits = Limits(memory_mb=1024)
    return native_server(
        "agentdojo-judge", JUDGE, modules=(PROGRAM,), mounts=mounts, python_path=[CODE, LIBRARIES], limits=limits
    )


def _files(home: Path) -> SuiteFiles:
    return SuiteFiles(
        root=home / "suites" / "agentdojo" / f"{AGENTDOJO.version}-{FOLDERS}",
        fingerprint=_fingerprint(),
        libraries=packages_folder(LOCK, home),
    )


def _of_package(name: str) -> str | None:
    return name if name.startswith("agentdojo/") and name.endswith((".py", ".yaml")) else None


@functools.cache
def _read(path: Path) -> dict[str, Json]:
    found: dict[str, Json] = json.loads(kept("agentdojo", path))
    return found


@functools.cache
def _fingerprint() -> str:
    return fingerprint(AGENTDOJO.sha256.encode() + LOCK.read_bytes(), PROGRAM, JUDGE)
