"""Seventy servers with hundreds of tools in one episode, of which a task needs a few that the agent must find."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.toolshelf import are_installed, grade, make_suite, make_tasks, shelf_servers
from gymcp.envs.tool_costs import rate_risks
from gymcp.mcp_servers.programs.shelf.server import services
from gymcp.types import EpisodeLimits

RISKS = {"create": 0.1, "set": 0.2, "add": 0.2, "take": 0.2, "move": 0.3}
"""Risk of a service's tool by what it does to a record; those that are not listed read."""


def _find_risks() -> dict[float, list[str]]:
    risks: dict[float, list[str]] = {}
    for service in services().values():
        for name, operation in service.operations.items():
            if operation.does in RISKS:
                risks.setdefault(RISKS[operation.does], []).append(name)
    return risks


ENV = EnvSpec(
    name="toolshelf",
    description="70 servers, 682 tools: 63 small services and 7 third-party servers; 180 tasks, and more without end.",
    servers=shelf_servers,
    installed=are_installed,
    suite=make_suite,
    more_tasks=make_tasks,
    grade=grade,
    lazy=True,
    limits=EpisodeLimits(steps=40),
    costs=rate_risks(_find_risks()),
)
