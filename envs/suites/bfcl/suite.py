"""BFCL multi-turn: 800 tasks over 128 tools in 8 stateful classes, from upstream's own wheel.

Nothing of upstream is in this repository. The wheel is fetched once and split: ``server/`` holds what may be mounted in
a sandbox, ``private/`` what must not be readable from inside one (tasks, gold, targets).
"""

from __future__ import annotations

import functools
import json
from pathlib import Path, PurePosixPath

from gymcp.cache import cache_errors
from gymcp.envs.suites.bfcl.targets import compute_targets
from gymcp.envs.suites.bfcl.tasks import CATEGORIES, read_tasks, to_task
from gymcp.envs.suites.upstream.run_once import run_to_end
from gymcp.envs.suites.upstream.suite_files import SuiteFiles, fingerprint, sandbox_for
from gymcp.envs.suites.upstream.verified_cache import keep, kept, kept_folder
from gymcp.envs.suites.upstream.wheels import Wheel, fetch_wheel, unpack
from gymcp.evaluators.graders.bfcl import grade
from gymcp.mcp_servers.native.server import native_server, precompile
from gymcp.mcp_servers.sandbox import Mount, Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.paths import gymcp_home
from gymcp.types import Suite

__all__ = ["bfcl_server", "grade", "install_bfcl", "is_installed", "load_suite", "servers"]

BFCL = Wheel(
    name="bfcl-eval",
    version="2026.3.23",
    sha256="3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
)
MPMATH = Wheel(
    name="mpmath",
    version="1.4.1",
    sha256="dc4f0ea2304480d4a9a48a94c1020571558ade522b44a6912efac63a586e140f",
)
PROGRAM = "gymcp.mcp_servers.programs.bfcl"
REVISION = 1
"""Of what we make of upstream's tasks: bumped with every change that a task's record shows."""
FOLDERS = 2
"""Of how the folder is made."""
INSIDE = PurePosixPath("/srv/bfcl")
"""Where ``server/`` appears in the sandbox."""

_CODE = "bfcl_eval/eval_checker/multi_turn_eval/func_source_code"
_DOCUMENTS = "bfcl_eval/data/multi_turn_func_doc"
_MODULES = (
    *("gorilla_file_system", "math_api", "message_api", "posting_api"),
    *("ticket_api", "trading_bot", "travel_booking", "vehicle_control"),
)
_PACKAGES = ("bfcl_eval", "bfcl_eval/eval_checker", "bfcl_eval/eval_checker/multi_turn_eval", _CODE)
_MOUNTED = frozenset(
    [f"{package}/__init__.py" for package in _PACKAGES]
    + [f"{_CODE}/{module}.py" for module in (*_MODULES, "long_context")]
    + [f"{_DOCUMENTS}/{module}.json" for module in _MODULES]
)
_PRIVATE = {"bfcl_eval/constants/default_prompts.py": "default_prompts.py"}
for _category in CATEGORIES:
    _PRIVATE[f"bfcl_eval/data/BFCL_v4_multi_turn_{_category}.json"] = f"questions/{_category}.json"
    _PRIVATE[f"bfcl_eval/data/possible_answer/BFCL_v4_multi_turn_{_category}.json"] = f"gold/{_category}.json"


@cache_errors()
def install_bfcl(home: Path | None = None, *, sandbox: Sandbox | None = None) -> SuiteFiles:
    """The suite's files in gymcp's cache, as they were installed. What is complete is used without network.

    Upstream's classes run once over the gold, for the targets: in `sandbox`, else in bubblewrap. Raises
    SandboxUnavailable where that is not there, IntegrityError for a wheel with another hash, UsageError where one
    cannot be had.
    """
    home = home or gymcp_home()
    files = _files(home)
    wall = sandbox_for("bfcl", "upstream's classes run once, for the targets", sandbox, files)

    def make(folder: Path) -> None:
        bfcl = fetch_wheel(BFCL, home / "wheels")
        unpack(bfcl, folder / "server", lambda name: name if name in _MOUNTED else None)
        unpack(bfcl, folder / "private", _PRIVATE.get)
        unpack(fetch_wheel(MPMATH, home / "wheels"), folder / "server", _of_mpmath)
        precompile(folder / "server")

    kept_folder("bfcl", files.root, make)
    if files.tasks.is_file():
        return files
    tasks = read_tasks(files.private, files.server / _CODE)
    targets = compute_targets(tasks, functools.partial(replay, files, wall))
    keep(files.tasks, json.dumps([{**task, **targets[task["id"]]} for task in tasks]).encode())
    return files


def is_installed(home: Path | None = None) -> bool:
    """True where nothing is left to fetch or to compute."""
    return _files(home or gymcp_home()).are_complete


def _files(home: Path) -> SuiteFiles:
    return SuiteFiles(root=home / "suites" / "bfcl" / f"{BFCL.version}-{FOLDERS}", fingerprint=_fingerprint())


def replay(files: SuiteFiles, sandbox: Sandbox, text: str) -> str:
    """Calls on fresh worlds, one task a line; the program says what a line holds and what comes back for it."""
    return run_to_end(bfcl_server(files), sandbox, text, "--replay")


def load_suite(home: Path | None = None, *, withhold_excluded: bool = True) -> Suite:
    """All 800 tasks, installed where they are not yet.

    `withhold_excluded`: keep from the agent what 72 tasks list as ``excluded_function``. Upstream's harness never reads
    that field, so its leaderboard offers these functions.
    """
    rows = json.loads(kept("bfcl", install_bfcl(home).tasks))
    return Suite(
        name="bfcl",
        version=f"{BFCL.version}+{REVISION}" + ("" if withhold_excluded else "-unrestricted"),
        tasks=tuple(to_task(row, withhold_excluded=withhold_excluded) for row in rows),
        source=f"{BFCL.name}=={BFCL.version}",
    )


def servers() -> tuple[ServerSpec, ...]:
    """The servers of the environment, installed where they are not yet."""
    return (bfcl_server(install_bfcl()),)


def bfcl_server(files: SuiteFiles) -> ServerSpec:
    """The one server of every task; `Task.initial_state` says which classes it is made of."""
    mounts = [Mount(source=files.server, target=INSIDE)]
    return native_server("bfcl", PROGRAM, mounts=mounts, python_path=[INSIDE], start="fork")


def _of_mpmath(name: str) -> str | None:
    kept = name.startswith("mpmath/") and name.endswith(".py") and not name.startswith("mpmath/tests/")
    return name if kept else None


@functools.cache
def _fingerprint() -> str:
    modules = (PROGRAM, __name__, "gymcp.envs.suites.bfcl.tasks", "gymcp.envs.suites.bfcl.targets")
    return fingerprint(f"{BFCL.sha256} {MPMATH.sha256}".encode(), *modules, "gymcp.evaluators.graders.bfcl")
