"""AgentDojo v1.2.2: 97 user tasks over 74 tools in four suites, and 35 goals of an attacker, from upstream's own wheel.

A server's sandbox has the tools and the models of the worlds; the judge's has the whole package.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from gymcp.envs.suites.agentdojo.tasks import task_id, to_task
from gymcp.envs.suites.upstream import suite_installation
from gymcp.envs.suites.upstream.file_layout import SuiteFiles
from gymcp.envs.suites.upstream.suite_installation import UpstreamSuite
from gymcp.envs.suites.upstream.wheels import Wheel
from gymcp.errors import IntegrityError
from gymcp.mcp_servers.sandbox import Sandbox
from gymcp.mcp_servers.spec import ServerSpec
from gymcp.types import Json, Suite

WHEEL = Wheel(
    name="agentdojo",
    version="0.1.35",
    sha256="364bea4219716b716bf639f504d195943f7f6a5535d312ca41d7098704a2affd",
)
REVISION = 1
"""Part of the suite's version, raised with every change of ours that a task's record shows."""
TASKS, GOALS = 97, 35
"""Number of user tasks, and of attackers' goals, of all four suites together."""

_TOOLS = "agentdojo/default_suites/v1"
_SUITES = ("workspace", "travel", "banking", "slack")
_SERVER_FILES = frozenset(
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


def install_agentdojo(home: Path | None = None, *, sandbox: Sandbox | None = None) -> SuiteFiles:
    """The files of `AGENTDOJO`, installed as `upstream.install.install` does it."""
    return suite_installation.install(AGENTDOJO, home, sandbox=sandbox)


def is_installed() -> bool:
    """True if nothing is left to fetch or to compute."""
    return suite_installation.is_installed(AGENTDOJO)


def read_suites() -> dict[str, Json]:
    """Upstream's suites by name: world, vectors, tasks, goals; installs them if they are not installed."""
    suites: dict[str, Json] = suite_installation.read_tasks(AGENTDOJO)
    return suites


def load_suite() -> Suite:
    """All 97 user tasks without an attack; installs the suite if it is not installed."""
    rows = [(name, suite, row) for name, suite in read_suites().items() for row in suite["user_tasks"]]
    return Suite(
        name="agentdojo",
        version=f"{WHEEL.version}+{REVISION}",
        tasks=tuple(to_task(name, suite, row) for name, suite, row in rows),
        source=f"{WHEEL.name}=={WHEEL.version}",
        pass_at_once=frozenset(task_id(name, row["id"]) for name, _, row in rows if row["passes_at_once"]),
    )


def servers() -> tuple[ServerSpec, ...]:
    """The one server of every task; `Task.initial_state` says which suite's tools it has."""
    return (suite_installation.suite_server(AGENTDOJO, install_agentdojo()),)


def _server_member(name: str) -> str | None:
    return name if name in _SERVER_FILES else None


def _private_member(name: str) -> str | None:
    return name if name.startswith("agentdojo/") and name.endswith((".py", ".yaml")) else None


def _check_tasks(suites: Json) -> None:
    """Check the numbers of tasks and goals. Raises IntegrityError if they are not those of the pinned wheel."""
    counts = tuple(sum(len(suite[part]) for suite in suites.values()) for part in ("user_tasks", "injection_tasks"))
    if counts != (TASKS, GOALS):
        raise IntegrityError(f"suite 'agentdojo': has {counts[0]} tasks and {counts[1]} goals, not {TASKS} and {GOALS}")


AGENTDOJO = UpstreamSuite(
    name="agentdojo",
    wheel=WHEEL,
    lock=Path(__file__).with_name("agentdojo.lock"),
    server="gymcp.mcp_servers.programs.agentdojo.server",
    judge="gymcp.mcp_servers.programs.agentdojo.judge",
    folder_revision=2,
    code=PurePosixPath("/srv/agentdojo"),
    for_server=_server_member,
    for_judge=_private_member,
    check_tasks=_check_tasks,
)
