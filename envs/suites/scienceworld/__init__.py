"""ScienceWorld's own simulator, with upstream's tasks, splits and gold actions."""

from gymcp.envs.suites.scienceworld.installation import servers
from gymcp.envs.suites.scienceworld.tasks import FAMILIES, SPLITS, make_suite, make_tasks, prepare, suite_is_made

__all__ = ["FAMILIES", "SPLITS", "make_suite", "make_tasks", "prepare", "servers", "suite_is_made"]
