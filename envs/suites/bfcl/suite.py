"""BFCL multi-turn: 800 tasks over 128 tools in 8 stateful classes, from upstream's own wheel.

Nothing of upstream is in this repository. The wheel is fetched once and split: ``server/`` holds what may be mounted in
a sandbox, ``private/`` what must not be readable from inside one (tasks, gold, targets).
"""

from __future__ import annotations

import functools
import json
from pathlib import Path, PurePosixPath

from gymcp.atomic import cache_errors
from gymcp.envs.suites.bfcl.targets import compute_targets
from gymcp.envs.suites.bfcl.tasks import CATEGORIES, read_tasks, to_task
from gymcp.envs.suites.upstream.file_layout import SuiteFiles, fingerprint
from gymcp.envs.suites.upstream.run_once import run_once
from gymcp.envs.suites.upstream.suite_installation import choose_install_sandbox
from gymcp.envs.suites.upstream.verified_cache import read_checked, verified_folder, write_checked
from gymcp.envs.suites.upstream.wheels import Wheel, fetch_wheel, unpack_wheel
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
"""Part of the suite's version, raised with every change of ours that a task's record shows."""
FOLDER_REVISION = 2
"""Part of the folder's name, raised with every change of how it is made."""
INSIDE = PurePosixPath("/srv/bfcl")
"""Folder in the sandbox at which ``server/`` is mounted."""

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
    """The suite's files in gymcp's cache, as they were installed. A complete installation needs no network.

    Upstream's classes run once over the gold, for the targets: in `sandbox`, else in bubblewrap. Raises
    SandboxUnavailable if that sandbox cannot be used, IntegrityError for a wheel with another hash, UsageError if a
    wheel cannot be downloaded.
    """
    home = home or gymcp_home()
    files = _files(home)
    confined = choose_install_sandbox("bfcl", "upstream's classes run once, for the targets", sandbox, files)

    def make(folder: Path) -> None:
        bfcl = fetch_wheel(BFCL, home / "wheels")
        unpack_wheel(bfcl, folder / "server", lambda name: name if name in _MOUNTED else None)
        unpack_wheel(bfcl, folder / "private", _PRIVATE.get)
        unpack_wheel(fetch_wheel(MPMATH, home / "wheels"), folder / "server", _mpmath_member)
        precompile(folder / "server")

    verified_folder("bfcl", files.root, make)
    if files.tasks.is_file():
        return files
    tasks = read_tasks(files.private, files.server / _CODE)
    targets = compute_targets(tasks, functools.partial(replay, files, confined))
    write_checked(files.tasks, json.dumps([{**task, **targets[task["id"]]} for task in tasks]).encode())
    return files


def is_installed(home: Path | None = None) -> bool:
    """True if nothing is left to fetch or to compute."""
    return _files(home or gymcp_home()).are_complete


def _files(home: Path) -> SuiteFiles:
    return SuiteFiles(root=home / "suites" / "bfcl" / f"{BFCL.version}-{FOLDER_REVISION}", fingerprint=_fingerprint())


def replay(files: SuiteFiles, sandbox: Sandbox, text: str) -> str:
    """The output of the server's program for calls on fresh worlds, one task a line of `text`.

    The program's docstring has the format of the lines and of the output.
    """
    return run_once(bfcl_server(files), sandbox, text, "--replay")


def load_suite(home: Path | None = None, *, withhold_excluded: bool = True) -> Suite:
    """All 800 tasks; installs the suite if it is not installed.

    `withhold_excluded`: keep from the agent the functions that 72 tasks list as ``excluded_function``. Upstream's
    harness never reads that field, so its leaderboard offers these functions.
    """
    rows = json.loads(read_checked("bfcl", install_bfcl(home).tasks))
    return Suite(
        name="bfcl",
        version=f"{BFCL.version}+{REVISION}" + ("" if withhold_excluded else "-unrestricted"),
        tasks=tuple(to_task(row, withhold_excluded=withhold_excluded) for row in rows),
        source=f"{BFCL.name}=={BFCL.version}",
    )


def servers() -> tuple[ServerSpec, ...]:
    """The one server of every task; installs the suite if it is not installed."""
    return (bfcl_server(install_bfcl()),)


def bfcl_server(files: SuiteFiles) -> ServerSpec:
    """The spec of the server; `Task.initial_state` says which classes it is made of."""
    mounts = [Mount(source=files.server, target=INSIDE)]
    return native_server("bfcl", PROGRAM, mounts=mounts, python_path=[INSIDE], start="fork")


def _mpmath_member(name: str) -> str | None:
    is_code = name.startswith("mpmath/") and name.endswith(".py") and not name.startswith("mpmath/tests/")
    return name if is_code else None


@functools.cache
def _fingerprint() -> str:
    modules = (PROGRAM, __name__, "gymcp.envs.suites.bfcl.tasks", "gymcp.envs.suites.bfcl.targets")
    return fingerprint(f"{BFCL.sha256} {MPMATH.sha256}".encode(), *modules, "gymcp.evaluators.graders.bfcl")
