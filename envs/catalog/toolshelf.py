"""Seventy servers with hundreds of tools in one episode, of which a task needs a few that the agent must find."""

from gymcp.envs.spec import EnvSpec
from gymcp.envs.suites.toolshelf import are_installed, grade, make_suite, make_tasks, shelf_servers
from gymcp.types import EpisodeLimits

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
)
