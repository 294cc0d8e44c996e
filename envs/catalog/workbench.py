"""Office work with files, a graph, a repository, a clock, a calendar and a help desk, on one server or several."""

from pathlib import Path

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.generation.git_objects import ENVIRONMENT
from gymcp.envs.suites.workbench import grade, make_suite, make_tasks
from gymcp.envs.suites.workbench.office import SERVER_OF
from gymcp.envs.tool_costs import rate_risks
from gymcp.evaluators.graders import with_milestones
from gymcp.mcp_servers.native.server import native_server
from gymcp.mcp_servers.packages.locked_server import LockedServerRef
from gymcp.mcp_servers.spec import FileState, ServerSpec
from gymcp.types import EpisodeLimits

LOCK = Path(__file__).with_name("servers.lock")
PROGRAMS = "gymcp.mcp_servers.programs"
LOCKED = (
    LockedServerRef(name="filesystem", lock=LOCK, state=FileState(kind="workspace")),
    LockedServerRef(name="memory", lock=LOCK, state=FileState(kind="workspace")),
    LockedServerRef(name="git", lock=LOCK, state=FileState(kind="git", path="repo"), env=ENVIRONMENT),
    LockedServerRef(name="time", lock=LOCK, state="stateless"),
)


def servers() -> tuple[ServerSpec, ...]:
    """Four servers from the lock file, which are installed if necessary, and two native ones."""
    native = (
        native_server(name, f"{PROGRAMS}.office.{name}", modules=(f"{PROGRAMS}.backoffice.books",), start="fork")
        for name in ("calendar", "desk")
    )
    return (*(server for locked in LOCKED for server in locked.servers()), *native)


COSTS = rate_risks(
    {
        0.5: (
            *("cancel_event", "delete_entities", "delete_observations", "delete_relations", "git_checkout"),
            *("git_reset", "move_file", "write_file"),
        ),
        0.2: (
            *("add_attendee", "add_contact", "add_observations", "create_directory", "create_entities", "create_event"),
            *("create_relations", "edit_file", "git_add", "git_commit", "git_create_branch", "move_event"),
            *("remove_attendee", "set_room", "update_contact"),
        ),
        0.1: ("assign_ticket", "comment_ticket", "create_ticket", "set_ticket_priority", "set_ticket_status"),
    }
)

ENV = EnvSpec(
    name="workbench",
    description="Office work on six servers, four of third parties: 270 tasks in six categories, at three levels.",
    servers=servers,
    installed=lambda: all(locked.is_installed() for locked in LOCKED),
    suite=make_suite,
    more_tasks=make_tasks,
    grade=with_milestones(grade),
    tools=frozenset(SERVER_OF),
    limits=EpisodeLimits(steps=40),
    costs=COSTS,
    components=("filesystem", "memory", "git", "calendar", "desk", "answer", "milestones"),
)
