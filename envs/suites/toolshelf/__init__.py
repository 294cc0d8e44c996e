"""Many servers at once: 70 servers with hundreds of tools, of which a task needs a few."""

from gymcp.envs.suites.toolshelf.grading import grade
from gymcp.envs.suites.toolshelf.servers import are_installed, server_names, shelf_servers
from gymcp.envs.suites.toolshelf.tasks import FAMILIES, make_suite, make_tasks

__all__ = ["FAMILIES", "are_installed", "grade", "make_suite", "make_tasks", "server_names", "shelf_servers"]
